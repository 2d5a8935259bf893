"""Names that are hard to write into a page."""

NASTY = "<script>alert(1)</script>"
QUOTED = "a \"quoted\" & 'other' </script> name"
RTL = "שם 🐝"

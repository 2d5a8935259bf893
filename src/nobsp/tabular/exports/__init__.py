"""Functions in other languages: ONNX, SQL, JavaScript and Excel, all made of the same layout."""

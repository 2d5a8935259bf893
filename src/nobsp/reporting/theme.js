// Before anything is painted: the reader's own preference for light or dark.
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";

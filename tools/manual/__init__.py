"""Reference pages of the manual, generated from the code, its pictures, and the hook that shows READMEs in it."""

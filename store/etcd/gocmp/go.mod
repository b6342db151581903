// Stands in for the real module in skiff's build; see docs/adr/0002-go-cmp.md.
module github.com/google/go-cmp

go 1.26

// Package cmpopts is empty: it lets go mod tidy resolve what only tests of our
// dependencies import.
package cmpopts

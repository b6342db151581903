package outcome

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Files are where results are kept; without Results nothing is.
type Files struct{ Results, Causes, Page, Commit string }

// Flags binds the files' own flags.
func (f *Files) Flags(flags *flag.FlagSet) {
	flags.StringVar(&f.Results, "results", "", "JUnit file that holds the newest outcome of every test")
	flags.StringVar(&f.Causes, "causes", "", "file of causes of failures, kept by hand")
	flags.StringVar(&f.Page, "page", "", "Markdown page to compute")
}

// Check refuses some without the others.
func (f Files) Check() error {
	if (f.Results == "") != (f.Page == "") || (f.Results == "") != (f.Causes == "") {
		return errors.New("-results, -causes and -page go together")
	}
	return nil
}

// Keep writes results and the page that shows them; told hears of causes that can go.
func (f Files) Keep(r Results, page func(Results, map[string]string) string, told io.Writer) error {
	if err := os.MkdirAll(filepath.Dir(f.Results), 0o755); err != nil {
		return fmt.Errorf("make folder of results: %w", err)
	}
	if err := r.Write(f.Results); err != nil {
		return err
	}
	return f.WritePage(r, page, told)
}

// WritePage computes the page anew.
func (f Files) WritePage(r Results, page func(Results, map[string]string) string, told io.Writer) error {
	causes, err := ReadCauses(f.Causes)
	if err != nil {
		return err
	}
	for _, s := range r.Stale(causes) {
		fmt.Fprintf(told, "%s: %s; its cause can go\n", f.Causes, s)
	}
	if err := os.WriteFile(f.Page, []byte(page(r, causes)), 0o644); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

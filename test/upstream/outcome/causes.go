package outcome

import (
	"fmt"
	"os"
	"strings"
)

// ReadCauses reads the file, kept by hand, that says why tests fail: a test's full name,
// and indented below it the cause in a line. # starts a comment.
func ReadCauses(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read causes: %w", err)
	}
	causes := map[string]string{}
	var name string
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "" || strings.HasPrefix(trimmed, "#"):
		case line[0] != ' ' && line[0] != '\t':
			if name != "" {
				return nil, fmt.Errorf("%s:%d: %q has no cause below it", path, n-1, name)
			}
			if _, twice := causes[trimmed]; twice {
				return nil, fmt.Errorf("%s:%d: %q has a cause already", path, n, trimmed)
			}
			name = trimmed
		case name == "":
			return nil, fmt.Errorf("%s:%d: a cause without a test above it", path, n)
		default:
			causes[name], name = trimmed, ""
		}
	}
	if name != "" {
		return nil, fmt.Errorf("%s: %q has no cause below it", path, name)
	}
	return causes, nil
}

// Stale says which causes have nothing to explain.
func (r Results) Stale(causes map[string]string) []string {
	var out []string
	for name := range causes {
		if t, known := r.ByName[name]; !known {
			out = append(out, name+" is no test of this suite")
		} else if t.Status == Passed {
			out = append(out, name+" passes")
		}
	}
	return out
}

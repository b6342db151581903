package environ

import (
	"fmt"
	"strings"
)

// ParseFile finds a key in an env file (KEP-3721): lines of NAME='value', where a
// value may run over several lines and is taken as it is; # starts a comment.
// A file with anything else is refused. The empty string means absent.
func ParseFile(raw []byte, key string) (string, error) {
	rest := string(raw)
	for n := 1; rest != ""; {
		line, tail, _ := strings.Cut(rest, "\n")
		trimmed := strings.TrimLeft(strings.TrimSuffix(line, "\r"), " \t")
		if trimmed == "" || trimmed[0] == '#' {
			rest = tail
			n++
			continue
		}
		name, _, ok := strings.Cut(trimmed, "=")
		switch {
		case !ok:
			return "", fmt.Errorf("line %d: missing '='", n)
		case name == "":
			return "", fmt.Errorf("line %d: empty variable name", n)
		case strings.TrimRight(name, " \t") != name:
			return "", fmt.Errorf("line %d: whitespace before '='", n)
		}
		value := rest[strings.IndexByte(rest, '=')+1:]
		if strings.HasPrefix(value, " ") || strings.HasPrefix(value, "\t") {
			// As in a shell: NAME= 'x' assigns nothing.
			if name == key {
				return "", nil
			}
			rest = tail
			n++
			continue
		}
		if !strings.HasPrefix(value, "'") {
			return "", fmt.Errorf("line %d: the value must be enclosed in single quotes", n)
		}
		quoted, after, closed := strings.Cut(value[1:], "'")
		if !closed {
			return "", fmt.Errorf("line %d: unclosed single quote", n)
		}
		end, tail, _ := strings.Cut(after, "\n")
		if end = strings.TrimSpace(end); end != "" && end[0] != '#' {
			return "", fmt.Errorf("line %d: unexpected text after the closing quote", n+strings.Count(quoted, "\n"))
		}
		if name == key {
			return quoted, nil
		}
		n += strings.Count(quoted, "\n") + 1
		rest = tail
	}
	return "", nil
}

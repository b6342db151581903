// Package iptables runs the programs iptables-restore and iptables-save, of IPv4 and IPv6, in
// the variant that the host uses.
//
// Owns: choosing the variant, the lock's wait, what their errors say. Must not: know what rules
// mean, or hold state.
package iptables

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Variant is which of the kernel's two tables of rules the programs write: the kernel has both,
// and packets see both.
type Variant string

// NFT programs write nftables, Legacy ones x_tables; Plain are the only ones that there are.
const (
	NFT    Variant = "nft"
	Legacy Variant = "legacy"
	Plain  Variant = ""
)

// Tool is the programs of one variant and family.
type Tool struct {
	Variant             Variant
	command, save, load string
	run                 runner
}

// runner runs a program with an input and returns its output.
type runner func(input []byte, argv ...string) ([]byte, error)

// wait is how many seconds a program waits for another that holds the lock.
const wait = "5"

// New is the programs of a variant.
func New(v Variant, v6 bool) *Tool { return newTool(v, v6, run) }

func newTool(v Variant, v6 bool, run runner) *Tool {
	name := "iptables"
	if v6 {
		name = "ip6tables"
	}
	if v != Plain {
		name += "-" + string(v)
	}
	return &Tool{Variant: v, command: name, save: name + "-save", load: name + "-restore", run: run}
}

// Load feeds rules in the language of iptables-restore to the kernel, one transaction a table.
// What they do not name stays as it is.
func (t *Tool) Load(rules []byte) error {
	_, err := t.run(rules, t.load, "-w", wait, "--noflush", "--counters")
	if err == nil {
		return nil
	}
	if line := failed(rules, err.Error()); line != "" {
		return fmt.Errorf("load rules: %w: %s", err, line)
	}
	return fmt.Errorf("load rules: %w", err)
}

// Save reads a table: its chains, and the rules in the order of their chains, as iptables-save
// writes them.
func (t *Tool) Save(table string) (chains map[string]bool, rules []string, err error) {
	out, err := t.run(nil, t.save, "-t", table)
	if err != nil {
		return nil, nil, fmt.Errorf("read table %s: %w", table, err)
	}
	chains = map[string]bool{}
	for line := range bytes.Lines(out) {
		switch {
		case bytes.HasPrefix(line, []byte(":")):
			name, _, _ := strings.Cut(string(line[1:]), " ")
			chains[name] = true
		case bytes.HasPrefix(line, []byte("-A ")):
			rules = append(rules, strings.TrimSpace(string(line)))
		}
	}
	return chains, rules, nil
}

// Has tells whether a table has a chain.
func (t *Tool) Has(table, chain string) (bool, error) {
	_, err := t.run(nil, t.command, "-w", wait, "-t", table, "-S", chain, "1")
	if err == nil {
		return true, nil
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return false, nil // no such chain; 4 is a lock that another holds
	}
	return false, fmt.Errorf("look for chain %s of table %s: %w", chain, table, err)
}

var lineNumber = regexp.MustCompile(`line:? (\d+)`)

// failed is the line of the input that an error names.
func failed(input []byte, message string) string {
	m := lineNumber.FindStringSubmatch(message)
	if m == nil {
		return ""
	}
	n, err := strconv.Atoi(m[1])
	lines := bytes.Split(input, []byte("\n"))
	if err != nil || n < 1 || n > len(lines) {
		return ""
	}
	return string(lines[n-1])
}

// folders are where the programs are where PATH does not say, as in a unit of systemd's.
var folders = []string{"/usr/sbin", "/sbin", "/usr/local/sbin"}

func find(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, dir := range folders {
		if err == nil {
			break
		}
		path, err = exec.LookPath(filepath.Join(dir, name))
	}
	return path, err
}

func run(input []byte, argv ...string) ([]byte, error) {
	path, err := find(argv[0])
	if err != nil {
		return nil, fmt.Errorf("%s is not installed: %w", argv[0], err)
	}
	cmd := exec.Command(path, argv[1:]...)
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &said
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", argv[0], err, strings.Join(strings.Fields(said.String()), " "))
	}
	return out.Bytes(), nil
}

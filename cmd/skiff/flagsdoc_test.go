package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

const flagsDoc = "../../docs/components.md"

// TestComponentsDoc keeps docs/components.md equal to the tables of flags;
// SKIFF_WRITE_DOCS=1 writes it.
func TestComponentsDoc(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(`# Components that run alone

` + "`skiff up`" + ` runs everything in two processes. Each component also runs alone, with the flags of its upstream namesake:
` + "`skiff kube-apiserver`, `skiff kube-scheduler`, `skiff kube-controller-manager`, `skiff cloud-controller-manager`, `skiff kubelet`, `skiff kube-proxy`" + `.
` + "`skiff up --without NAME,…`" + ` leaves out what others run, upstream's or skiff's. Configuration files are read through the
types that Kubernetes publishes, strictly. A flag that upstream has is acted on, accepted with a warning where what it
says holds anyway or means nothing here, or refused with a line that names it; an unknown flag is refused. What is
green together is in [interop.md](interop.md). This page is computed from the tables in ` + "`cmd/skiff`" + ` (SKIFF_WRITE_DOCS=1 go test ./cmd/skiff).
`)
	commands := componentCommands()
	for _, name := range []string{"kube-apiserver", "kube-scheduler", "kube-controller-manager", "cloud-controller-manager", "kubelet", "kube-proxy"} {
		var acted []string
		accepted, refused := map[string][]string{}, map[string][]string{}
		commands[name].Flags().VisitAll(func(f *pflag.Flag) {
			v, ok := f.Value.(*ignored)
			switch flag := "`--" + f.Name + "`"; {
			case !ok:
				acted = append(acted, flag)
			case v.refused:
				refused[v.why] = append(refused[v.why], flag)
			default:
				accepted[v.why] = append(accepted[v.why], flag)
			}
		})
		fmt.Fprintf(&b, "\n## skiff %s\n\nActed on: %s.\n", name, strings.Join(acted, ", "))
		list(&b, "Accepted without effect", accepted)
		list(&b, "Refused", refused)
	}
	if os.Getenv("SKIFF_WRITE_DOCS") != "" {
		if err := os.WriteFile(flagsDoc, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(flagsDoc)
	if err != nil || !bytes.Equal(have, b.Bytes()) {
		t.Errorf("%s is out of date (%v); SKIFF_WRITE_DOCS=1 go test ./cmd/skiff writes it", flagsDoc, err)
	}
}

func list(b *bytes.Buffer, title string, flags map[string][]string) {
	var lines []string
	for why, names := range flags {
		lines = append(lines, fmt.Sprintf("- %s: %s\n", strings.Join(names, ", "), why))
	}
	slices.Sort(lines)
	fmt.Fprintf(b, "\n%s:\n\n%s", title, strings.Join(lines, ""))
}

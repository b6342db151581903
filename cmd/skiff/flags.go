package main

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// others are flags of upstream's component that ours has no use for. Their names are
// separated by blanks; one that ends in "?" is a switch, which needs no value.
type others struct {
	// why says, for accepted flags, what holds whatever they say, and for refused ones what
	// is lacking.
	why   string
	names string
}

// component is the command of a component that runs alone, with upstream's flag names.
// Each of upstream's flags is either a flag of ours, accepted (and a warning says what holds
// instead) or refused with a line that names it.
type component struct {
	name, short string
	accepted    []others
	refused     []others
	// bind makes the component's own flags and returns what runs it.
	bind func(*pflag.FlagSet) func(*cobra.Command, *slog.Logger) error
}

func (c component) command() *cobra.Command {
	cmd := &cobra.Command{Use: c.name, Short: c.short, Args: cobra.NoArgs}
	flags := cmd.Flags()
	flags.SortFlags = true
	run := c.bind(flags)
	for i, list := range [][]others{c.accepted, c.refused} {
		for _, o := range list {
			for _, name := range strings.Fields(o.names) {
				add(flags, name, &ignored{why: o.why, refused: i == 1})
			}
		}
	}
	logging := bindLogging(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log, err := logging.logger(cmd)
		if err != nil {
			return err
		}
		if err := settle(flags, log); err != nil {
			return err
		}
		return run(cmd, log)
	}
	return cmd
}

func add(flags *pflag.FlagSet, name string, v *ignored) {
	bare, isSwitch := strings.CutSuffix(name, "?")
	v.isSwitch = isSwitch
	usage := "accepted: " + v.why
	if v.refused {
		usage = "refused: " + v.why
	}
	f := flags.VarPF(v, bare, "", usage)
	f.Hidden = true
	if isSwitch {
		f.NoOptDefVal = "true"
	}
}

// ignored is the value of a flag that is not acted on.
type ignored struct {
	why      string
	refused  bool
	isSwitch bool
	values   []string
}

func (v *ignored) Set(s string) error { v.values = append(v.values, s); return nil }

func (v *ignored) String() string { return strings.Join(v.values, ",") }

func (v *ignored) Type() string {
	if v.isSwitch {
		return "bool"
	}
	return "string"
}

// off says that the flag asks for nothing: it is empty, or a switch that is off.
func (v *ignored) off() bool {
	return !slices.ContainsFunc(v.values, func(s string) bool { return s != "" && !(v.isSwitch && s == "false") })
}

// settle refuses what is refused and warns of what has no effect.
func settle(flags *pflag.FlagSet, log *slog.Logger) error {
	var err error
	flags.Visit(func(f *pflag.Flag) {
		v, ok := f.Value.(*ignored)
		switch {
		case !ok || err != nil:
		case !v.refused:
			log.Warn("flag has no effect", "flag", "--"+f.Name, "because", v.why)
		case !v.off():
			err = fmt.Errorf("--%s=%s is not supported: %s; leave it out", f.Name, v, v.why)
		}
	})
	return err
}

// required refuses flags that were left out.
func required(flags *pflag.FlagSet, names ...string) error {
	for _, n := range names {
		if f := flags.Lookup(n); f.Value.String() == "" || f.Value.String() == "[]" {
			return fmt.Errorf("--%s is required", n)
		}
	}
	return nil
}

// oneOf refuses a flag whose value is none of those allowed.
func oneOf(name, value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("--%s=%s is not supported; use %s", name, value, strings.Join(allowed, " or "))
}

package main

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// logging are upstream's flags of the log.
type logging struct {
	format string
	level  *verbosity
}

// verbosity is -v as klog counts it.
type verbosity int

func (v *verbosity) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil {
		return fmt.Errorf("%q is no number", s)
	}
	*v = verbosity(n)
	return nil
}
func (v *verbosity) String() string { return strconv.Itoa(int(*v)) }
func (v *verbosity) Type() string   { return "level" }

// debugFrom is the verbosity from which on debug lines appear.
const debugFrom = 4

var loggingAccepted = others{
	why:   "the log goes to standard error, line by line, unbuffered, with one verbosity for all",
	names: "log-flush-frequency log-json-info-buffer-size log-json-split-stream? log-text-info-buffer-size log-text-split-stream? vmodule",
}

func bindLogging(flags *pflag.FlagSet) *logging {
	l := &logging{level: new(verbosity)}
	flags.StringVar(&l.format, "logging-format", "text", "text or json")
	flags.VarP(l.level, "v", "v", "verbosity; 4 and more show debug lines")
	for name := range strings.FieldsSeq(loggingAccepted.names) {
		add(flags, name, &ignored{why: loggingAccepted.why})
	}
	return l
}

func (l *logging) logger(cmd *cobra.Command) (*slog.Logger, error) {
	if err := oneOf("logging-format", l.format, "text", "json"); err != nil {
		return nil, err
	}
	opts := &slog.HandlerOptions{Level: slog.LevelInfo}
	if *l.level >= debugFrom || os.Getenv("SKIFF_DEBUG") != "" {
		opts.Level = slog.LevelDebug
	}
	var h slog.Handler = slog.NewTextHandler(cmd.ErrOrStderr(), opts)
	if l.format == "json" {
		h = slog.NewJSONHandler(cmd.ErrOrStderr(), opts)
	}
	log := slog.New(h)
	klog.SetSlogLogger(log.With("component", "client-go")) // what libraries say
	return log, nil
}

package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"

	upstream "k8s.io/apiserver/pkg/audit"
	"k8s.io/utils/clock"
)

// Mode says how a backend keeps events.
type Mode string

// Modes, by upstream's names.
const (
	// Batch keeps events later; those beyond the buffer are lost.
	Batch Mode = "batch"
	// Blocking keeps an event before its request goes on; a failure is logged.
	Blocking Mode = "blocking"
	// BlockingStrict refuses requests whose first event can not be kept.
	BlockingStrict Mode = "blocking-strict"
)

var modes = []Mode{Batch, Blocking, BlockingStrict}

// LogConfig is where and how the log backend writes.
type LogConfig struct {
	// Path is a file, or "-" for standard output.
	Path string
	// Format is "json" (the default) or "legacy", a line of text.
	Format string
	// MaxSize is the size in megabytes at which the file is put aside; 0: it grows.
	MaxSize int
	// MaxAge (days) and MaxBackups bound the files put aside; 0: they do not.
	MaxAge, MaxBackups int
	// Compress gzips the files put aside.
	Compress bool
	// Mode is Blocking if empty.
	Mode     Mode
	Batch    BatchConfig
	Truncate TruncateConfig
}

// logBackend writes lines.
type logBackend struct {
	out      *file
	legacy   bool
	strict   bool
	truncate TruncateConfig
	batcher  *batcher // nil: blocking
	log      *slog.Logger
}

func newLogBackend(c LogConfig, log *slog.Logger, clk clock.WithTicker) (*logBackend, error) {
	b := &logBackend{log: log, truncate: c.Truncate}
	switch c.Format {
	case "", "json":
	case "legacy":
		b.legacy = true
	default:
		return nil, fmt.Errorf("--audit-log-format %q: must be json or legacy", c.Format)
	}
	if c.Path == "" {
		return nil, errors.New("--audit-log-path: a file, or - for standard output, is needed")
	}
	for _, n := range []struct {
		flag  string
		value int
	}{{"maxage", c.MaxAge}, {"maxbackup", c.MaxBackups}, {"maxsize", c.MaxSize}} {
		if n.value < 0 {
			return nil, fmt.Errorf("--audit-log-%s %d: must not be negative", n.flag, n.value)
		}
	}
	if c.Mode == "" {
		c.Mode = Blocking
	}
	if err := c.Mode.validate("log"); err != nil {
		return nil, err
	}
	b.strict = c.Mode == BlockingStrict
	if err := c.Truncate.validate("log"); err != nil {
		return nil, err
	}
	var err error
	if c.Path == "-" {
		b.out = &file{out: os.Stdout}
	} else if b.out, err = openFile(c.Path, c, clk, log); err != nil {
		return nil, fmt.Errorf("--audit-log-path: %w", err)
	}
	if c.Mode == Batch {
		b.batcher, err = newBatcher(c.Batch, "log", clk, func(_ context.Context, lines [][]byte) error {
			_, err := b.out.Write(slices.Concat(lines...))
			return err
		}, log)
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (m Mode) validate(plugin string) error {
	if slices.Contains(modes, m) {
		return nil
	}
	return fmt.Errorf("--audit-%s-mode %q: must be one of %s, %s, %s", plugin, m, Batch, Blocking, BlockingStrict)
}

func (b *logBackend) put(ev event) bool {
	line := b.truncate.line(ev, "log", b.log)
	if line == nil {
		return true
	}
	if b.legacy {
		line = []byte(upstream.EventString(ev.Event) + "\n")
	}
	if b.batcher != nil {
		b.batcher.put(line)
		return true
	}
	if _, err := b.out.Write(line); err != nil {
		b.log.Error("write to the audit log", "auditID", ev.AuditID, "stage", ev.Stage, "err", err)
		return !b.strict
	}
	return true
}

func (b *logBackend) run(ctx context.Context) error {
	if b.batcher != nil {
		b.batcher.run(ctx)
	} else {
		<-ctx.Done()
	}
	return b.out.Close()
}

// TruncateConfig bounds what is handed to a backend.
type TruncateConfig struct {
	Enabled bool
	// MaxBatchSize and MaxEventSize are in bytes.
	MaxBatchSize, MaxEventSize int64
}

// Upstream's defaults.
const (
	defaultMaxBatchBytes = 10 << 20
	defaultMaxEventBytes = 100 << 10
)

func (c *TruncateConfig) validate(plugin string) error {
	if !c.Enabled {
		return nil
	}
	if c.MaxEventSize <= 0 {
		return fmt.Errorf("--audit-%s-truncate-max-event-size %d: must be positive", plugin, c.MaxEventSize)
	}
	if c.MaxBatchSize < c.MaxEventSize {
		return fmt.Errorf("--audit-%s-truncate-max-batch-size %d: must not be less than the max event size %d", plugin, c.MaxBatchSize, c.MaxEventSize)
	}
	return nil
}

// truncatedAnnotation marks an event that lost its bodies.
const truncatedAnnotation = "audit.k8s.io/truncated"

// cut takes the bodies from an event that is too large; nil: that is not enough.
func (c *TruncateConfig) cut(ev event) []byte {
	if int64(len(ev.line)) <= c.MaxEventSize {
		return ev.line
	}
	small := *ev.Event
	small.RequestObject, small.ResponseObject = nil, nil
	small.Annotations = map[string]string{truncatedAnnotation: "true"}
	maps.Copy(small.Annotations, ev.Annotations)
	line := appendEvent(nil, &small, ev.extra, ev.impersonated)
	if int64(len(line)) > c.MaxEventSize {
		return nil
	}
	return line
}

// line is what a backend takes of an event; nil: nothing, it is too large even when cut.
func (c *TruncateConfig) line(ev event, plugin string, log *slog.Logger) []byte {
	if !c.Enabled {
		return ev.line
	}
	line := c.cut(ev)
	if line == nil {
		log.Warn("audit event dropped: it is too large", "flag", "--audit-"+plugin+"-truncate-max-event-size", "auditID", ev.AuditID)
	}
	return line
}

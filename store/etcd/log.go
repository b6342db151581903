package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapTo is a zap logger for etcd that writes to slog. Where etcd would end the process,
// fatal is called instead, and the goroutine that etcd wanted to die with it blocks for
// ever: the owner must end the process soon, with a message of its own.
func zapTo(log *slog.Logger, fatal func(error)) *zap.Logger {
	core := &slogCore{log: log}
	hook := &fatalHook{report: fatal}
	return zap.New(core, zap.WithFatalHook(hook), zap.WithPanicHook(hook))
}

type slogCore struct{ log *slog.Logger }

// level: what etcd calls information is of interest only to who debugs etcd.
func level(l zapcore.Level) slog.Level {
	switch {
	case l >= zapcore.ErrorLevel:
		return slog.LevelError
	case l == zapcore.WarnLevel:
		return slog.LevelWarn
	case l == zapcore.InfoLevel:
		return slog.LevelDebug
	}
	return slog.LevelDebug - 4
}

func (c *slogCore) Enabled(l zapcore.Level) bool {
	return l >= zapcore.DPanicLevel || c.log.Enabled(context.Background(), level(l))
}

func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{log: slog.New(c.log.Handler().WithAttrs(attrs(fields)))}
}

// transient are complaints that etcd repeats every few seconds until their cause is
// gone, which for these is a member that has just started, or is stopping; the client's
// about each try reach whoever made the request as an error.
var transient = map[string]bool{
	"Failed to detect schema version":  true,
	"failed to update storage version": true,
	"failed to update cluster version": true,
	"retrying of unary invoker failed": true,
}

func (c *slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if transient[e.Message] {
		e.Level = zapcore.InfoLevel
	}
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.log.LogAttrs(context.Background(), level(e.Level), e.Message, attrs(fields)...)
	return nil
}

func (c *slogCore) Sync() error { return nil }

// listeningCore tells when a message is logged, whether anybody reads the log or not.
type listeningCore struct {
	zapcore.Core
	message string
	heard   func()
}

func (c *listeningCore) Enabled(l zapcore.Level) bool {
	return l >= zapcore.WarnLevel || c.Core.Enabled(l)
}

func (c *listeningCore) With(fields []zapcore.Field) zapcore.Core {
	return &listeningCore{Core: c.Core.With(fields), message: c.message, heard: c.heard}
}

func (c *listeningCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if e.Message == c.message {
		c.heard()
	}
	return c.Core.Check(e, ce)
}

func attrs(fields []zapcore.Field) []slog.Attr {
	enc := zapcore.NewMapObjectEncoder()
	out := make([]slog.Attr, 0, len(fields))
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			out = append(out, slog.Any(f.Key, err))
			continue
		}
		f.AddTo(enc)
		if v, ok := enc.Fields[f.Key]; ok {
			out = append(out, slog.Any(f.Key, v))
		}
	}
	return out
}

// fatalHook reports the first fatal entry.
type fatalHook struct {
	report func(error)
	once   sync.Once
}

// OnWrite implements zapcore.CheckWriteHook; it must not return.
func (h *fatalHook) OnWrite(ce *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := fmt.Errorf("etcd: %s", ce.Message)
	for _, f := range fields {
		if cause, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			err = fmt.Errorf("etcd: %s: %w", ce.Message, cause)
			break
		}
	}
	h.once.Do(func() { h.report(err) })
	select {}
}

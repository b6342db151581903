package cluster

import (
	"log/slog"
	"os"
)

// newLogger writes a process's log to standard error, which skiff up points at a file.
func newLogger() *slog.Logger {
	level := slog.LevelInfo
	if os.Getenv("SKIFF_DEBUG") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

package cluster

import (
	"log/slog"
	"os"

	"k8s.io/klog/v2"
)

// newLogger writes a process's log to standard error, which skiff up points at a file.
func newLogger() *slog.Logger {
	level := slog.LevelInfo
	if os.Getenv("SKIFF_DEBUG") != "" {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	klog.SetSlogLogger(log.With("component", "client-go")) // what libraries say
	return log
}

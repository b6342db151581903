package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/skiff-k8s/skiff/apiserver/audit"
)

// check makes the paths absolute, since the control plane has a working directory of its
// own, and refuses what it would not start with.
func (c *AuditConfig) check() error {
	if c.PolicyFile == "" || c.LogPath == "" {
		return errors.New("--audit-policy-file and --audit-log-path go together: one says what is recorded, the other where")
	}
	if _, err := audit.LoadPolicy(c.PolicyFile); err != nil {
		return fmt.Errorf("--audit-policy-file: %w", err)
	}
	for _, f := range []struct {
		flag string
		path *string
	}{{"audit-policy-file", &c.PolicyFile}, {"audit-log-path", &c.LogPath}} {
		if *f.path == "-" {
			continue
		}
		abs, err := filepath.Abs(*f.path)
		if err != nil {
			return fmt.Errorf("--%s: %w", f.flag, err)
		}
		*f.path = abs
	}
	return nil
}

// auditor is nil where nothing is recorded.
func (c *AuditConfig) auditor(log *slog.Logger) (*audit.Auditor, error) {
	o := audit.NewOptions()
	o.PolicyFile, o.Log.Path = c.PolicyFile, c.LogPath
	return o.New(log)
}

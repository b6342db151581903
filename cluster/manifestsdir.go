package cluster

import (
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/skiff-k8s/skiff/cluster/manifests"
	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/version"
)

// Manifests is the directory whose files are applied, ManifestsStatus what became of them.
func (p Paths) Manifests() string       { return filepath.Join(p.Dir, "manifests") }
func (p Paths) ManifestsStatus() string { return filepath.Join(p.Run(), "manifests.json") }

// newOwnManifests applies them through the API server of this process.
func newOwnManifests(p Paths, s *apiServer, log *slog.Logger) (component.Component, error) {
	cfg, hc := inProcess(s.server, &user.DefaultInfo{Name: "system:skiff-manifests", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}})
	return newManifests(p, cfg, hc, log)
}

func newManifests(p Paths, cfg *rest.Config, hc *http.Client, log *slog.Logger) (component.Component, error) {
	client, err := dynamic.NewForConfigAndClient(dynamic.ConfigFor(cfg), hc)
	if err != nil {
		return nil, fmt.Errorf("make client of manifests: %w", err)
	}
	disc, err := discovery.NewDiscoveryClientForConfigAndClient(cfg, hc)
	if err != nil {
		return nil, fmt.Errorf("make client of manifests: %w", err)
	}
	return manifests.New(manifests.Config{Dir: p.Manifests(), StatusFile: p.ManifestsStatus(), Client: client, Discovery: disc,
		Tooling: "skiff/" + version.Skiff, Logger: log})
}

// newRemoteManifests applies them through the API server that others run.
func newRemoteManifests(c *Config, p Paths, creds *Credentials, log *slog.Logger) (component.Component, error) {
	cfg := &rest.Config{Host: c.Server(), UserAgent: "skiff", QPS: 50, Burst: 100,
		TLSClientConfig: rest.TLSClientConfig{CAData: creds.CA.Cert, CertData: creds.Admin.Cert, KeyData: creds.Admin.Key}}
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make client of manifests: %w", err)
	}
	return newManifests(p, cfg, hc, log)
}

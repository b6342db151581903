package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"
)

// record is what a sandbox was attached with, and if it was, which addresses it has.
type record struct {
	Config       json.RawMessage `json:"config"`
	NetNS        string          `json:"netns"`
	Args         [][2]string     `json:"args"`
	Capabilities map[string]any  `json:"capabilities"`
	// Addresses are empty while the plugins have not answered.
	Addresses []netip.Addr `json:"addresses,omitempty"`

	id string
}

func (r record) list() (*libcni.NetworkConfigList, error) {
	list, err := libcni.NetworkConfFromBytes(r.Config)
	if err != nil {
		return nil, fmt.Errorf("read the configuration that sandbox %s was attached with: %w", r.id, err)
	}
	return list, nil
}

// flatten a list into one text, plugins that lie in files of their own included: these may go before
// the sandbox does.
func flatten(l *libcni.NetworkConfigList) ([]byte, error) {
	plugins := make([]json.RawMessage, len(l.Plugins))
	for i, p := range l.Plugins {
		plugins[i] = p.Bytes
	}
	text, err := json.Marshal(map[string]any{
		"cniVersion": l.CNIVersion, "name": l.Name, "disableCheck": l.DisableCheck, "disableGC": l.DisableGC, "loadOnlyInlinedPlugins": true, "plugins": plugins,
	})
	if err != nil {
		return nil, fmt.Errorf("encode network %q: %w", l.Name, err)
	}
	return text, nil
}

func (r record) runtime(id string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: id, NetNS: r.NetNS, IfName: link, Args: r.Args, CapabilityArgs: r.Capabilities}
}

// arguments under the names that plugins know from all runtimes.
func arguments(s Sandbox) [][2]string {
	return [][2]string{
		{"IgnoreUnknown", "1"},
		{"K8S_POD_NAMESPACE", s.Namespace},
		{"K8S_POD_NAME", s.Name},
		{"K8S_POD_INFRA_CONTAINER_ID", s.ID},
		{"K8S_POD_UID", s.UID},
	}
}

// burst of a bandwidth limit: upstream sets none, and this is what runtimes give plugins then.
const burst = 1<<32 - 1

// capabilities under the names of CNI's conventions. Plugins get those that they declare.
func capabilities(s Sandbox) map[string]any {
	out := map[string]any{}
	if len(s.Ports) > 0 {
		out["portMappings"] = s.Ports
	}
	if s.Ingress > 0 || s.Egress > 0 {
		limits := map[string]uint64{}
		if s.Ingress > 0 {
			limits["ingressRate"], limits["ingressBurst"] = s.Ingress, burst
		}
		if s.Egress > 0 {
			limits["egressRate"], limits["egressBurst"] = s.Egress, burst
		}
		out["bandwidth"] = limits
	}
	if len(s.DNS.Servers)+len(s.DNS.Searches)+len(s.DNS.Options) > 0 {
		out["dns"] = s.DNS
	}
	return out
}

// older compares versions of the specification; what can't be read is old.
func older(v, than string) bool {
	ok, err := version.GreaterThanOrEqualTo(v, than)
	return err != nil || !ok
}

// book holds a file a sandbox. It is not synced: after a power cut the sandboxes are gone too.
type book struct{ dir string }

func openBook(dir string) (book, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return book{}, fmt.Errorf("make book of CNI attachments: %w", err)
	}
	return book{dir}, nil
}

const suffix = ".json"

func (b book) file(id string) string { return filepath.Join(b.dir, id+suffix) }

func (b book) has(id string) bool {
	_, err := os.Stat(b.file(id))
	return err == nil
}

func (b book) get(id string) (record, bool, error) {
	text, err := os.ReadFile(b.file(id))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, false, nil
	}
	if err != nil {
		return record{}, false, fmt.Errorf("read CNI attachment: %w", err)
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return record{}, false, fmt.Errorf("read CNI attachment from %s: %w", b.file(id), err)
	}
	r.id = id
	return r, true, nil
}

func (b book) put(id string, r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode CNI attachment: %w", err)
	}
	temp := b.file(id) + ".new"
	if err := os.WriteFile(temp, text, 0o600); err != nil {
		return fmt.Errorf("keep CNI attachment: %w", err)
	}
	if err := os.Rename(temp, b.file(id)); err != nil {
		return fmt.Errorf("keep CNI attachment: %w", err)
	}
	return nil
}

func (b book) remove(id string) error {
	if err := os.Remove(b.file(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget CNI attachment: %w", err)
	}
	return nil
}

func (b book) ids() ([]string, error) {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return nil, fmt.Errorf("read book of CNI attachments: %w", err)
	}
	var out []string
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), suffix); ok {
			out = append(out, id)
		}
	}
	return out, nil
}

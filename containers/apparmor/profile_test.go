package apparmor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/host/apparmor"
)

// host is one whose kernel has a profile named mine, and whose parser loads whatever it is given
// under the default's name.
func host(t *testing.T, enabled, parser bool) apparmor.Host {
	t.Helper()
	dir := t.TempDir()
	h := apparmor.Host{Security: dir + "/security", Enable: dir + "/enabled", Parser: dir + "/parser", Current: dir + "/current", Abstract: dir + "/d"}
	files := map[string]string{}
	if enabled {
		files["security/profiles"], files["enabled"] = "mine (enforce)\n", "Y\n"
	}
	if parser {
		files["parser"] = "#!/bin/sh\ncat >> " + dir + "/loaded\necho '" + DefaultName + " (enforce)' >> " + dir + "/security/profiles\n"
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func TestOf(t *testing.T) {
	of := func(kind runtimeapi.SecurityProfile_ProfileType, ref string) *runtimeapi.LinuxContainerSecurityContext {
		return &runtimeapi.LinuxContainerSecurityContext{Apparmor: &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: ref}}
	}
	const local, runtime, unconfined = runtimeapi.SecurityProfile_Localhost, runtimeapi.SecurityProfile_RuntimeDefault, runtimeapi.SecurityProfile_Unconfined
	old := func(s string) *runtimeapi.LinuxContainerSecurityContext {
		return &runtimeapi.LinuxContainerSecurityContext{ApparmorProfile: s}
	}
	privileged := func(c *runtimeapi.LinuxContainerSecurityContext) *runtimeapi.LinuxContainerSecurityContext {
		c.Privileged = true
		return c
	}
	both := of(local, "mine")
	both.ApparmorProfile = "localhost/other"
	const none, disabled, noParser = "", "!not enabled", "!not installed"
	for what, c := range map[string]struct {
		sec *runtimeapi.LinuxContainerSecurityContext
		// The profile's name, or after ! part of the error: with AppArmor, without the parser,
		// without AppArmor.
		on, bare, off string
	}{
		"nothing":            {nil, DefaultName, none, none},
		"default":            {of(runtime, ""), DefaultName, noParser, disabled},
		"unconfined":         {of(unconfined, ""), none, none, none},
		"loaded":             {of(local, "mine"), "mine", "mine", disabled},
		"with the prefix":    {of(local, "localhost/mine"), "mine", "mine", disabled},
		"not loaded":         {of(local, "other"), "!not found", "!not found", disabled},
		"no name":            {of(local, ""), "!must name", "!must name", disabled},
		"name of no use":     {of(runtime, "mine"), "!localhostRef", "!localhostRef", "!localhostRef"},
		"old: default":       {old("runtime/default"), DefaultName, noParser, disabled},
		"old: unconfined":    {old("unconfined"), none, none, none},
		"old: loaded":        {old("localhost/mine"), "mine", "mine", disabled},
		"old: not loaded":    {old("localhost/other"), "!not found", "!not found", disabled},
		"old: nonsense":      {old("mine"), "!none of", "!none of", "!none of"},
		"new over old":       {both, "mine", "mine", disabled},
		"privileged":         {privileged(of(runtime, "")), none, none, disabled},
		"privileged, loaded": {privileged(of(local, "mine")), "mine", "mine", disabled},
		"privileged, none":   {privileged(old("")), none, none, none},
	} {
		for host, want := range map[*Profiles]string{New(host(t, true, true)): c.on, New(host(t, true, false)): c.bare, New(host(t, false, true)): c.off} {
			got, err := host.Of(t.Context(), c.sec)
			if part, bad := strings.CutPrefix(want, "!"); bad && (err == nil || !strings.Contains(err.Error(), part)) || !bad && (got != want || err != nil) {
				t.Errorf("%s: %q, %v; want %q", what, got, err, want)
			}
		}
	}
}

// The default profile is loaded when first needed, and one that is there under its name stays.
func TestDefaultIsLoadedOnce(t *testing.T) {
	h := host(t, true, true)
	p := New(h)
	loaded := filepath.Join(filepath.Dir(h.Parser), "loaded")
	if _, err := os.Stat(loaded); err == nil {
		t.Error("it is loaded unasked")
	}
	for range 3 {
		if _, err := p.Of(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(loaded)
	if err != nil || strings.Count(string(b), "profile "+DefaultName+" ") != 1 {
		t.Errorf("the parser got %q, %v", b, err)
	}
}

func TestMissing(t *testing.T) {
	if New(host(t, true, true)).Missing() != nil || New(host(t, false, false)).Missing() != nil || New(host(t, true, false)).Missing() == nil {
		t.Error("what is told is not that the parser alone is missing")
	}
}

func TestText(t *testing.T) {
	bare := text(func(string) bool { return false }, "")
	if !strings.HasPrefix(bare, "@{PROC}=/proc/\nprofile "+DefaultName+" ") || strings.Contains(bare, "include") || strings.Contains(bare, "profile_name") {
		t.Errorf("on a host without pieces:\n%s", bare)
	}
	full := text(func(string) bool { return true }, `my "runtime"`)
	for _, want := range []string{"abi <abi/3.0>,\ninclude <tunables/global>\n", "  include <abstractions/base>\n", `signal (receive) peer="my \"runtime\""`} {
		if !strings.Contains(full, want) {
			t.Errorf("without %q:\n%s", want, full)
		}
	}
}

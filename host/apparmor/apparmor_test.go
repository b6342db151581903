package apparmor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fake is a host made of files.
func fake(t *testing.T, files map[string]string) Host {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	return Host{Security: dir + "/security", Enable: dir + "/enabled", Parser: dir + "/parser", Current: dir + "/current", Abstract: dir + "/d"}
}

func TestCheck(t *testing.T) {
	for what, c := range map[string]struct {
		files map[string]string
		ok    bool
	}{
		"on":            {map[string]string{"security/profiles": "", "enabled": "Y\n"}, true},
		"off":           {map[string]string{"security/profiles": "", "enabled": "N\n"}, false},
		"not compiled":  {nil, false},
		"not mounted":   {map[string]string{"enabled": "Y\n"}, false},
		"no such param": {map[string]string{"security/profiles": ""}, false},
	} {
		if err := fake(t, c.files).Check(); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrDisabled) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestLoaded(t *testing.T) {
	h := fake(t, map[string]string{"security/profiles": "docker-default (enforce)\nmy profile (complain)\na//b (enforce)\n"})
	for name, want := range map[string]bool{"docker-default": true, "docker": false, "my profile": true, "my": false, "a//b": true, "": false, "docker-default (enforce)": false} {
		if got, err := h.Loaded(name); got != want || err != nil {
			t.Errorf("%q: %v, %v", name, got, err)
		}
	}
	if _, err := fake(t, nil).Loaded("x"); err == nil {
		t.Error("no list is no error")
	}
}

func TestLoad(t *testing.T) {
	h := fake(t, map[string]string{"parser": "#!/bin/sh\necho \"$*\" > \"$0.args\"\ncat > \"$0.in\"\n"})
	if !h.CanLoad() || fake(t, nil).CanLoad() {
		t.Error("whether there is a parser is not seen")
	}
	if err := h.Load(t.Context(), "profile x {}"); err != nil {
		t.Fatal(err)
	}
	in, err := os.ReadFile(h.Parser + ".in")
	if err != nil || string(in) != "profile x {}" {
		t.Errorf("the parser got %q, %v", in, err)
	}
	h = fake(t, map[string]string{"parser": "#!/bin/sh\necho 'syntax error,'\necho line 1 >&2\nexit 1\n"})
	err = h.Load(t.Context(), "nonsense")
	if err == nil || !strings.Contains(err.Error(), "syntax error, line 1") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, want one line with what the parser said", err)
	}
}

func TestOwn(t *testing.T) {
	for text, want := range map[string]string{"unconfined\n": "", "skiffd (enforce)\n": "skiffd", "a b (complain)\x00": "a b", "unconfined\x00": ""} {
		if got := fake(t, map[string]string{"current": text}).Own(); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := fake(t, nil).Own(); got != "" {
		t.Errorf("without AppArmor: %q", got)
	}
}

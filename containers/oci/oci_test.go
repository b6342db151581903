package oci

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestArguments(t *testing.T) {
	for name, tt := range map[string]struct {
		entrypoint, cmd, command, args, want []string
	}{
		"image decides":                 {[]string{"e"}, []string{"c"}, nil, nil, []string{"e", "c"}},
		"args replace cmd":              {[]string{"e"}, []string{"c"}, nil, []string{"a"}, []string{"e", "a"}},
		"command replaces both":         {[]string{"e"}, []string{"c"}, []string{"x"}, nil, []string{"x"}},
		"command and args replace both": {[]string{"e"}, []string{"c"}, []string{"x"}, []string{"a"}, []string{"x", "a"}},
		"cmd alone":                     {nil, []string{"c"}, nil, nil, []string{"c"}},
		"nothing":                       {nil, nil, nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			img := &v1.ConfigFile{Config: v1.Config{Entrypoint: tt.entrypoint, Cmd: tt.cmd}}
			got, err := arguments(&runtimeapi.ContainerConfig{Command: tt.command, Args: tt.args}, img)
			if (err == nil) != (tt.want != nil) || !slices.Equal(got, tt.want) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func TestSignals(t *testing.T) {
	for in, want := range map[string]int{"TERM": 15, "SIGTERM": 15, "9": 9, "sigint": 2, "SIGRTMIN": 34, "SIGRTMIN+3": 37, "RTMAX-1": 63, "SIGNOPE": 0, "0": 0, "65": 0, "SIGRTMIN+99": 0} {
		got, err := ParseSignal(in)
		if int(got) != want || (err == nil) != (want != 0) {
			t.Errorf("%s: %d, %v", in, got, err)
		}
	}
	for v := int32(1); v < int32(len(runtimeapi.Signal_name)); v++ {
		if _, err := ParseSignal(SignalName(runtimeapi.Signal(v))); err != nil {
			t.Errorf("%s: %v", runtimeapi.Signal(v), err)
		}
	}
}

func TestCapabilities(t *testing.T) {
	c := func(add, drop []string) *runtimeapi.LinuxContainerSecurityContext {
		return &runtimeapi.LinuxContainerSecurityContext{Capabilities: &runtimeapi.Capability{AddCapabilities: add, DropCapabilities: drop}}
	}
	for name, tt := range map[string]struct {
		sec       *runtimeapi.LinuxContainerSecurityContext
		available []string
		want      []string
		bad       bool
	}{
		"none but one":    {sec: c([]string{"NET_ADMIN"}, []string{"ALL"}), want: []string{"CAP_NET_ADMIN"}},
		"all but one":     {sec: c([]string{"all"}, []string{"cap_chown"}), want: allCapabilities[1:]},
		"not available":   {sec: c([]string{"ALL"}, nil), available: []string{"CAP_KILL"}, want: []string{"CAP_KILL"}},
		"privileged":      {sec: &runtimeapi.LinuxContainerSecurityContext{Privileged: true}, want: allCapabilities},
		"unknown":         {sec: c([]string{"FLY"}, nil), bad: true},
		"dropped default": {sec: c(nil, []string{"ALL"}), want: []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := capabilities(nil, tt.sec, tt.available)
			if (err != nil) != tt.bad {
				t.Fatal(err)
			}
			if err == nil && (!slices.Equal(got.Bounding, tt.want) || len(got.Ambient) > 0) {
				t.Errorf("got %v", got.Bounding)
			}
		})
	}
}

func rootfs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"passwd": "root:x:0:0::/root:/bin/sh\n# comment\nbob:x:1000:1001::/:/bin/sh\n7:x:70:71::/:/bin/sh\n",
		"group":  "root:x:0:\nbob:x:1001:\nwheel:x:10:root,bob\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, "etc", name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestUsers(t *testing.T) {
	i64 := func(n int64) *runtimeapi.Int64Value { return &runtimeapi.Int64Value{Value: n} }
	for name, tt := range map[string]struct {
		image string
		sec   *runtimeapi.LinuxContainerSecurityContext
		want  specs.User
		bad   bool
	}{
		"nothing said":     {want: specs.User{AdditionalGids: []uint32{0, 10}}},
		"image's name":     {image: "bob", want: specs.User{UID: 1000, GID: 1001, AdditionalGids: []uint32{1001, 10}}},
		"name and group":   {image: "bob:wheel", want: specs.User{UID: 1000, GID: 10, AdditionalGids: []uint32{10}}},
		"numbers":          {image: "5:6", want: specs.User{UID: 5, GID: 6, AdditionalGids: []uint32{6}}},
		"a name of digits": {image: "7", want: specs.User{UID: 70, GID: 71, AdditionalGids: []uint32{71}}},
		"unknown name":     {image: "alice", bad: true},
		"unknown group":    {image: "bob:nope", bad: true},
		"user overrides":   {image: "bob", sec: &runtimeapi.LinuxContainerSecurityContext{RunAsUser: i64(0)}, want: specs.User{AdditionalGids: []uint32{0, 10}}},
		"group alone":      {sec: &runtimeapi.LinuxContainerSecurityContext{RunAsGroup: i64(5)}, bad: true},
		"out of range":     {image: "4294967296", bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := resolveUser(rootfs(t), tt.sec, tt.image)
			if (err != nil) != tt.bad {
				t.Fatal(err)
			}
			if err == nil && !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// A link in the image must lead to the image's own files, not the host's.
func TestUserDatabaseStaysInTheImage(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/../../../../../../etc/passwd", filepath.Join(dir, "etc/passwd")); err != nil {
		t.Fatal(err)
	}
	got, err := readDatabase(dir, "etc/passwd")
	if err != nil || got != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestMountsAreArranged(t *testing.T) {
	got := arrange([]specs.Mount{{Destination: "/a/b/c", Source: "1"}, {Destination: "/a", Source: "2"}, {Destination: "/a/b/", Source: "3"}, {Destination: "/a", Source: "4"}})
	var order []string
	for _, m := range got {
		order = append(order, m.Source)
	}
	if !slices.Equal(order, []string{"4", "3", "1"}) {
		t.Errorf("got %v", order)
	}
}

func TestSeccompProfiles(t *testing.T) {
	names := func(p *specs.LinuxSeccomp) map[string]specs.LinuxSeccompAction {
		out := map[string]specs.LinuxSeccompAction{}
		for _, s := range p.Syscalls {
			for _, n := range s.Names {
				out[n] = s.Action
			}
		}
		return out
	}
	plain, admin := names(defaultSeccomp(DefaultCapabilities)), names(defaultSeccomp([]string{"CAP_SYS_ADMIN"}))
	for _, tt := range []struct {
		call         string
		plain, admin specs.LinuxSeccompAction
	}{
		{"read", specs.ActAllow, specs.ActAllow},
		{"mount", "", specs.ActAllow},
		{"clone3", specs.ActErrno, specs.ActAllow},
		{"keyctl", "", ""},
		{"chroot", specs.ActAllow, ""},
		{"io_uring_setup", "", ""},
	} {
		if plain[tt.call] != tt.plain || admin[tt.call] != tt.admin {
			t.Errorf("%s: %q, with CAP_SYS_ADMIN %q", tt.call, plain[tt.call], admin[tt.call])
		}
	}
	got, err := parseSeccomp([]byte(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[
		{"names":["mkdir"],"action":"SCMP_ACT_ERRNO"},
		{"names":["bpf"],"action":"SCMP_ACT_ERRNO","excludes":{"caps":["CAP_BPF"]}},
		{"name":"acct","action":"SCMP_ACT_ERRNO","includes":{"caps":["CAP_SYS_PACCT"]}}]}`), []string{"CAP_BPF"})
	if err != nil {
		t.Fatal(err)
	}
	if n := names(got); len(n) != 1 || n["mkdir"] != specs.ActErrno {
		t.Errorf("got %v", n)
	}
	if _, err := parseSeccomp([]byte(`{}`), nil); err == nil || !strings.Contains(err.Error(), "defaultAction") {
		t.Errorf("an empty profile: %v", err)
	}
}

func TestEnvironment(t *testing.T) {
	got := environment(Input{
		Container: &runtimeapi.ContainerConfig{Envs: []*runtimeapi.KeyValue{{Key: "A", Value: []byte("2")}, {Key: "EQ", Value: []byte("x=y")}}},
		Sandbox:   &runtimeapi.PodSandboxConfig{Hostname: "h"},
		Image:     &v1.ConfigFile{Config: v1.Config{Env: []string{"PATH=/bin", "A=1"}}},
	})
	if !slices.Equal(got, []string{"PATH=/bin", "HOSTNAME=h", "A=2", "EQ=x=y"}) {
		t.Errorf("got %v", got)
	}
}

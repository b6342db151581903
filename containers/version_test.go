package containers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers/monitor"
	"github.com/skiff-k8s/skiff/containers/record"
)

// testdata/v1 is what format 1 of each record looked like on disk. It stays as
// it is; a change of format adds a directory.
func TestReadsFormat1(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/v1")); err != nil {
		t.Fatal(err)
	}
	r, err := New(testConfig(dir, ""))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for id, want := range map[string]runtimeapi.ContainerState{
		"7474": runtimeapi.ContainerState_CONTAINER_RUNNING, // adoption decides at Run
		"a7f9": runtimeapi.ContainerState_CONTAINER_EXITED,
	} {
		st, err := r.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			t.Fatal(err)
		}
		s := st.GetStatus()
		if s.GetState() != want || s.GetUser().GetLinux().GetUid() != 65532 || s.GetImage().GetImage() != "skiff.local/hello:v1" ||
			(want == runtimeapi.ContainerState_CONTAINER_EXITED && (s.GetExitCode() != 1 || s.GetReason() != "Error")) {
			t.Errorf("container %v", s)
		}
		sb, err := r.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: "f44c"})
		if err != nil || sb.GetStatus().GetMetadata().GetName() != "pod" || sb.GetStatus().GetNetwork().GetIp() != "192.0.2.1" || len(sb.GetContainersStatuses()) != 2 {
			t.Errorf("sandbox %v, %v", sb, err)
		}
	}
	if n := len(r.images.List()); n != 2 {
		t.Errorf("%d images", n)
	}
	exit, err := monitor.ReadExit(r.exitFile("a7f9d8bc78505f38d1252ba8009862e952f11e20657e733ca637e389796a2ee4"))
	if err != nil || exit.Code != 1 || exit.FinishedAt.IsZero() {
		t.Errorf("exit %+v, %v", exit, err)
	}
	state, err := monitor.ReadState(r.containerRun("7474eec292000c6be63fe1af7166fe59166ecf64980bab1d9609dd549f8c3938"))
	if err != nil || state.PID != 12718 || state.MonitorStart != 548596 {
		t.Errorf("monitor %+v, %v", state, err)
	}
}

func TestRefusesNewerFormats(t *testing.T) {
	for _, name := range []string{"sandboxes/x/sandbox.json", "containers/x/container.json", "images/index/x.json"} {
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(`{"version":99}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := New(testConfig(dir, "")); !errors.Is(err, record.ErrNewer) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A record half written by a full disk does not keep the others from running.
func TestUnusableRecordsAreSkipped(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"sandboxes/x/sandbox.json", "containers/x/container.json", "images/index/x.json"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(`{"ver`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := New(testConfig(dir, ""))
	if err != nil || len(r.sandboxes)+len(r.containers)+len(r.images.List()) != 0 {
		t.Errorf("%v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no directory":       {Network: noNetwork{}},
		"relative directory": {RootDir: "x", Network: noNetwork{}},
		"no network":         {RootDir: t.TempDir()},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

package images

import (
	"context"
	"log/slog"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/internal/fakecri"
)

func TestCollect(t *testing.T) {
	s := fakecri.Start(t)
	c, err := cri.New(cri.Config{RuntimeEndpoint: s.Endpoint()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()
	for _, n := range []string{"used:1", "old:1", "older:1"} {
		s.AddImage(n, nil, "")
	}
	run := func(img string) string {
		sb, err := c.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: sb.PodSandboxId, Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: img}}}); err != nil {
			t.Fatal(err)
		}
		return sb.PodSandboxId
	}
	run("used:1")
	sb := run("old:1")
	g := NewCollector(c, Policy{}, slog.New(slog.DiscardHandler))
	names := func() map[string]bool {
		resp, err := c.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]bool{}
		for _, i := range resp.Images {
			out[i.RepoTags[0]] = true
		}
		return out
	}
	now := time.Now()
	if freed, err := g.collect(ctx, 1, now); err != nil || freed != 0 {
		t.Errorf("images seen for the first time were removed: %d, %v", freed, err)
	}
	if _, err := c.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	// The one that was never used goes first, and only as much as is needed.
	if freed, err := g.collect(ctx, 1, now.Add(3*time.Minute)); err != nil || freed != 1000 {
		t.Errorf("freed %d, %v", freed, err)
	}
	if n := names(); n["older:1"] || !n["old:1"] || !n["used:1"] {
		t.Errorf("left %v", n)
	}
	if err := g.Free(ctx); err != nil {
		t.Fatal(err)
	}
	if n := names(); n["old:1"] && time.Since(now) > 2*time.Minute || !n["used:1"] {
		t.Errorf("left %v", n)
	}
}

// The oldest go once they were not used for longer than the policy has it, and no sooner.
func TestCollectByAge(t *testing.T) {
	s := fakecri.Start(t)
	c, err := cri.New(cri.Config{RuntimeEndpoint: s.Endpoint()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()
	s.AddImage("idle:1", nil, "")
	g := NewCollector(c, Policy{MinAge: time.Second, MaxAge: time.Hour}, slog.New(slog.DiscardHandler))
	now := time.Now()
	for _, step := range []struct {
		after time.Duration
		left  int
	}{{0, 1}, {30 * time.Minute, 1}, {61 * time.Minute, 0}} {
		if _, err := g.collect(ctx, 0, now.Add(step.after)); err != nil {
			t.Fatal(err)
		}
		list, err := c.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
		if err != nil || len(list.Images) != step.left {
			t.Errorf("after %s: %v %v", step.after, list, err)
		}
	}
}

func TestPolicyCheck(t *testing.T) {
	for _, p := range []Policy{{HighPercent: 101}, {HighPercent: 50, LowPercent: 60}, {MinAge: -1}, {MinAge: time.Hour, MaxAge: time.Minute}} {
		if p.Check() == nil {
			t.Errorf("%+v is taken", p)
		}
	}
	for _, p := range []Policy{{}, {HighPercent: 100}, {HighPercent: 70}, {HighPercent: 90, LowPercent: 90}} {
		if err := p.Check(); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

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
	g := NewCollector(c, slog.New(slog.DiscardHandler))
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
	if n := names(); n["old:1"] && time.Since(now) > minImageAge || !n["used:1"] {
		t.Errorf("left %v", n)
	}
}

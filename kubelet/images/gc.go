package images

import (
	"context"
	"fmt"
	"log/slog"
	"sort"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/kubelet/cri"
)

// Thresholds of image collection, as upstream.
const (
	gcEvery     = 5 * time.Minute
	highPercent = 85
	lowPercent  = 80
	minImageAge = 2 * time.Minute
)

// Collector removes images that no container uses when their disk fills, those
// first that have not been used for longest.
type Collector struct {
	cri *cri.Client
	log *slog.Logger

	mu   sync.Mutex
	seen map[string]imageUse
}

type imageUse struct{ first, last time.Time }

// NewCollector makes a collector; Run runs it.
func NewCollector(c *cri.Client, log *slog.Logger) *Collector {
	return &Collector{cri: c, log: log, seen: map[string]imageUse{}}
}

// Run collects every 5 min until the context ends.
func (g *Collector) Run(ctx context.Context) {
	t := time.NewTicker(gcEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		used, total, err := g.disk(ctx)
		if err != nil {
			g.log.Debug("read use of image file system", "error", err)
			continue
		}
		want := uint64(0)
		if total > 0 && used*100/total >= highPercent {
			want = used - total*lowPercent/100
		}
		freed, err := g.collect(ctx, want, time.Now())
		if err != nil {
			g.log.Warn("collect images", "error", err)
		}
		if want > 0 {
			g.log.Info("collected images", "wanted", want, "freed", freed)
		}
	}
}

// Free removes all images that are not in use.
func (g *Collector) Free(ctx context.Context) error {
	_, err := g.collect(ctx, 1<<63, time.Now())
	return err
}

func (g *Collector) disk(ctx context.Context) (used, total uint64, err error) {
	resp, err := g.cri.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return 0, 0, fmt.Errorf("ask for the image file system: %w", err)
	}
	if len(resp.ImageFilesystems) == 0 {
		return 0, 0, fmt.Errorf("the runtime names no image file system")
	}
	var st unix.Statfs_t
	dir := resp.ImageFilesystems[0].GetFsId().GetMountpoint()
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, fmt.Errorf("look at image file system %s: %w", dir, err)
	}
	total = st.Blocks * uint64(st.Bsize)
	return total - st.Bavail*uint64(st.Bsize), total, nil
}

// collect frees at least want bytes if it can. It always takes note of what is used.
func (g *Collector) collect(ctx context.Context, want uint64, now time.Time) (uint64, error) {
	list, err := g.cri.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return 0, fmt.Errorf("list images: %w", err)
	}
	containers, err := g.cri.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return 0, fmt.Errorf("list containers: %w", err)
	}
	inUse := map[string]bool{}
	for _, c := range containers.Containers {
		for _, n := range []string{c.ImageRef, c.ImageId, c.GetImage().GetImage(), c.GetImage().GetUserSpecifiedImage()} {
			inUse[n] = true
		}
	}
	// Runtimes before containerd 1.7 do not pin it, and cannot start a pod without it.
	if img := g.cri.SandboxImage(ctx); img != "" {
		inUse[img] = true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	present := map[string]bool{}
	var idle []*runtimeapi.Image
	for _, img := range list.Images {
		present[img.Id] = true
		u, known := g.seen[img.Id]
		if !known {
			u.first = now
		}
		used := inUse[img.Id] || img.Pinned
		for _, n := range append(img.RepoTags, img.RepoDigests...) {
			used = used || inUse[n]
		}
		if used {
			u.last = now
		} else if known && now.Sub(u.first) >= minImageAge {
			idle = append(idle, img)
		}
		g.seen[img.Id] = u
	}
	for id := range g.seen {
		if !present[id] {
			delete(g.seen, id)
		}
	}
	sort.SliceStable(idle, func(i, j int) bool {
		a, b := g.seen[idle[i].Id], g.seen[idle[j].Id]
		if !a.last.Equal(b.last) {
			return a.last.Before(b.last)
		}
		return a.first.Before(b.first)
	})
	freed := uint64(0)
	for _, img := range idle {
		if freed >= want {
			break
		}
		if _, err := g.cri.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: img.Id}}); err != nil {
			g.log.Warn("remove image", "image", img.Id, "error", err)
			continue
		}
		g.log.Info("removed unused image", "image", img.RepoTags, "bytes", img.Size)
		freed += img.Size
		delete(g.seen, img.Id)
	}
	return freed, nil
}

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

const gcEvery = 5 * time.Minute

// Policy says when images go. Zero values are upstream's defaults.
type Policy struct {
	// HighPercent of the disk in use is when collection begins, LowPercent what it is to
	// come down to; 85 and 80. HighPercent 100: never.
	HighPercent, LowPercent uint64
	// MinAge that an image must have been here for; 2 min.
	MinAge time.Duration
	// MaxAge without use after which an image goes whatever the disk has; 0: none.
	MaxAge time.Duration
}

func (p *Policy) setDefaults() {
	if p.HighPercent == 0 {
		p.HighPercent = 85
	}
	if p.LowPercent == 0 {
		p.LowPercent = min(80, p.HighPercent)
	}
	if p.MinAge == 0 {
		p.MinAge = 2 * time.Minute
	}
}

// Check says what is wrong with a policy.
func (p Policy) Check() error {
	p.setDefaults()
	switch {
	case p.HighPercent > 100:
		return fmt.Errorf("image collection begins at %d %% of the disk: give a percentage", p.HighPercent)
	case p.LowPercent > p.HighPercent:
		return fmt.Errorf("image collection is to come down to %d %% of the disk, which is above %d %%, where it begins", p.LowPercent, p.HighPercent)
	case p.MinAge < 0 || p.MaxAge < 0:
		return fmt.Errorf("an age of images is negative")
	case p.MaxAge != 0 && p.MaxAge <= p.MinAge:
		return fmt.Errorf("the greatest age of unused images, %s, is not above the least age, %s", p.MaxAge, p.MinAge)
	}
	return nil
}

// Collector removes images that no container uses when their disk fills, those
// first that have not been used for longest.
type Collector struct {
	cri    *cri.Client
	policy Policy
	log    *slog.Logger
	begun  time.Time
	// Listed is told which images are there each time they are looked at; nil: nobody is.
	Listed func(refs map[string]bool)

	mu   sync.Mutex
	seen map[string]imageUse
}

type imageUse struct{ first, last time.Time }

// NewCollector makes a collector; Run runs it.
func NewCollector(c *cri.Client, p Policy, log *slog.Logger) *Collector {
	p.setDefaults()
	return &Collector{cri: c, policy: p, log: log, begun: time.Now(), seen: map[string]imageUse{}}
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
		if err := g.Look(ctx); err != nil && ctx.Err() == nil {
			g.log.Warn("collect images", "error", err)
		}
	}
}

// Look removes what the policy has go now.
func (g *Collector) Look(ctx context.Context) error {
	used, total, err := g.disk(ctx)
	if err != nil {
		return err
	}
	want := uint64(0)
	if total > 0 && g.policy.HighPercent < 100 && used*100/total >= g.policy.HighPercent {
		want = used - total*g.policy.LowPercent/100
	}
	freed, err := g.collect(ctx, want, time.Now())
	if want > 0 {
		g.log.Info("collected images", "wanted", want, "freed", freed)
	}
	return err
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

// tooOld tells whether an image was not used for longer than the policy has it. What was
// before this process is not known: it counts from then on. Must hold mu.
func (g *Collector) tooOld(id string, now time.Time) bool {
	last := g.seen[id].last
	if last.IsZero() {
		last = g.seen[id].first
	}
	if last.Before(g.begun) {
		last = g.begun
	}
	return g.policy.MaxAge > 0 && now.Sub(last) > g.policy.MaxAge
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
	if g.Listed != nil {
		refs := map[string]bool{}
		for _, img := range list.Images {
			refs[img.Id] = true
		}
		g.Listed(refs)
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
		} else if known && now.Sub(u.first) >= g.policy.MinAge {
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
		if freed >= want && !g.tooOld(img.Id, now) {
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

// Package images gets container images onto the node by their pull policies,
// with credentials from pull secrets, one pull per image at a time and back-off,
// and takes unused ones away when the disk fills.
package images

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/kubelet/cri"
)

// Back-off after failed pulls of one image for one pod, as upstream.
const (
	initialBackOff = 10 * time.Second
	maxBackOff     = 5 * time.Minute
)

// Error is why a container has to wait for its image, in the words of the API's
// container status.
type Error struct {
	Reason, Message string
	// RetryAt is when another try makes sense; zero: at the caller's leisure.
	RetryAt time.Time
}

func (e *Error) Error() string { return e.Reason + ": " + e.Message }

// Image is one that is present.
type Image struct {
	Ref      string // what the runtime calls it
	UID      *int64
	Username string
}

// Config of a Puller.
type Config struct {
	CRI   *cri.Client
	Clock clock.PassiveClock
	// RootDir is the kubelet's directory: there are a docker config.json that serves all pods of
	// the node, and the records of who may use which image. Empty: neither.
	RootDir string
	// MaxParallel pulls at a time; 0: no limit.
	MaxParallel int
	// ProgressEvery is how often a pull that takes its time is told of; 0: every 10 s.
	ProgressEvery time.Duration
	Logger        *slog.Logger
}

// Puller is safe for concurrent use.
type Puller struct {
	cfg     Config
	records records
	slots   chan struct{} // nil: as many pulls as there may be
	metrics metrics

	mu      sync.Mutex
	backOff map[string]*backOff // by pod uid and image
	pulls   map[string]*sync.Mutex
}

type backOff struct {
	delay   time.Duration
	last    time.Time
	message string
}

// New makes a puller.
func New(cfg Config) *Puller {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.ProgressEvery == 0 {
		cfg.ProgressEvery = 10 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Puller{cfg: cfg, backOff: map[string]*backOff{}, pulls: map[string]*sync.Mutex{}}
	if cfg.RootDir != "" {
		p.records.dir = filepath.Join(cfg.RootDir, "image_manager")
	}
	if cfg.MaxParallel > 0 {
		p.slots = make(chan struct{}, cfg.MaxParallel)
	}
	return p
}

// Request is one container's need of an image.
type Request struct {
	Pod     types.UID
	Image   string
	Policy  corev1.PullPolicy
	Secrets []*corev1.Secret
	Sandbox *runtimeapi.PodSandboxConfig
	// Event records what happens for the user.
	Event func(eventType, reason, message string)
}

// Ensure returns the image, pulling it if the policy says so.
func (p *Puller) Ensure(ctx context.Context, r Request) (Image, *Error) {
	var present, required *bool // what is found out of it
	defer func() { p.metrics.asked(r.Policy, present, required) }()
	name, err := withTag(r.Image)
	if err != nil {
		msg := fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %q: %v", r.Image, r.Image, err)
		r.Event(corev1.EventTypeWarning, "InspectFailed", msg)
		return Image{}, &Error{Reason: "InvalidImageName", Message: msg}
	}
	if r.Policy != corev1.PullAlways {
		img, found, err := p.Find(ctx, name)
		if err != nil {
			msg := fmt.Sprintf("Failed to inspect image %q: %v", "", err)
			r.Event(corev1.EventTypeWarning, "InspectFailed", msg)
			return Image{}, &Error{Reason: "ImageInspectError", Message: msg}
		}
		present = &found
		allowed := false
		if found {
			if allowed, err = p.allowed(r, name, img); err != nil {
				p.cfg.Logger.Warn("read who may use an image; pulling it again", "image", name, "error", err)
			}
		}
		if allowed {
			required = ptr.To(false)
			p.forget(r.Pod, name)
			r.Event(corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", r.Image))
			return img, nil
		}
		if r.Policy == corev1.PullNever {
			if found {
				required = ptr.To(true)
			}
			// Whoever may not use an image is not told that it is there.
			msg := fmt.Sprintf("Container image %q is not present with pull policy of Never", r.Image)
			r.Event(corev1.EventTypeWarning, "ErrImageNeverPull", msg)
			return Image{}, &Error{Reason: "ErrImageNeverPull", Message: msg}
		}
	}
	required = ptr.To(true)
	return p.pull(ctx, r, name)
}

// Find asks whether an image is present.
func (p *Puller) Find(ctx context.Context, name string) (Image, bool, error) {
	resp, err := p.cfg.CRI.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	if err != nil {
		return Image{}, false, err
	}
	if resp.Image == nil {
		return Image{}, false, nil
	}
	img := Image{Ref: resp.Image.Id, Username: resp.Image.Username}
	if resp.Image.Uid != nil {
		img.UID = &resp.Image.Uid.Value
	}
	return img, true, nil
}

func (p *Puller) pull(ctx context.Context, r Request, name string) (Image, *Error) {
	key := string(r.Pod) + "_" + name
	now := p.cfg.Clock.Now()
	p.mu.Lock()
	b := p.backOff[key]
	lock := p.pulls[name]
	if lock == nil {
		lock = &sync.Mutex{}
		p.pulls[name] = lock
	}
	p.mu.Unlock()
	if b != nil && now.Sub(b.last) < b.delay {
		msg := fmt.Sprintf("Back-off pulling image %q", name)
		r.Event(corev1.EventTypeNormal, "BackOff", msg)
		return Image{}, &Error{Reason: "ImagePullBackOff", Message: msg + ": " + b.message, RetryAt: b.last.Add(b.delay)}
	}

	r.Event(corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", name))
	start := p.cfg.Clock.Now()
	lock.Lock() // others that want this image wait and find it pulled
	begun := p.cfg.Clock.Now()
	err := p.slot(ctx)
	var used *credential
	if err == nil {
		stop := p.progress(r, name)
		used, err = p.try(ctx, r, name)
		stop()
		p.release()
	}
	lock.Unlock()
	if err == nil {
		var img Image
		var found bool
		if img, found, err = p.Find(ctx, name); err == nil && found {
			if err := p.records.pulled(name, img.Ref, used); err != nil {
				p.cfg.Logger.Warn("note who may use an image", "image", name, "error", err)
			}
			end := p.cfg.Clock.Now()
			p.forget(r.Pod, name)
			size := p.size(ctx, name)
			r.Event(corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %d bytes.",
				name, end.Sub(begun).Truncate(time.Millisecond), end.Sub(start).Truncate(time.Millisecond), size))
			p.metrics.pulled(size, end.Sub(start))
			return img, nil
		}
		if err == nil {
			err = fmt.Errorf("the runtime pulled the image but does not have it")
		}
	}
	if err := p.records.failed(name); err != nil {
		p.cfg.Logger.Warn("note that an image was not pulled", "image", name, "error", err)
	}
	if ctx.Err() != nil {
		return Image{}, &Error{Reason: "ErrImagePull", Message: ctx.Err().Error()} // the pod goes away: nothing to remember
	}
	r.Event(corev1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %v", name, err))
	e := pullError(name, err)
	p.mu.Lock()
	if b == nil || p.cfg.Clock.Since(b.last) > 2*maxBackOff {
		b = &backOff{delay: initialBackOff}
	} else {
		b = &backOff{delay: min(2*b.delay, maxBackOff)}
	}
	b.last, b.message = p.cfg.Clock.Now(), e.Error()
	p.backOff[key] = b
	p.mu.Unlock()
	// The back-off itself is shown once it is looked at again.
	e.RetryAt = b.last.Add(time.Second)
	return Image{}, e
}

// pullError gives the two failures that CRI names a reason of their own.
func pullError(name string, err error) *Error {
	msg := cri.Message(err)
	for _, k := range []struct{ prefix, text string }{
		{"RegistryUnavailable", "the registry is unavailable"}, {"SignatureValidationFailed", "the signature validation failed"},
	} {
		if rest, ok := strings.CutPrefix(msg, k.prefix); ok {
			return &Error{Reason: k.prefix, Message: fmt.Sprintf("image pull failed for %s because %s%s", name, k.text, rest)}
		}
	}
	return &Error{Reason: "ErrImagePull", Message: err.Error()}
}

// try pulls with each credential that fits, or none, and returns the one that it came by.
func (p *Puller) try(ctx context.Context, r Request, name string) (*credential, error) {
	creds, broken := p.credentials(r, name)
	tries := make([]*credential, len(creds))
	for i := range creds {
		tries[i] = &creds[i]
	}
	if len(tries) == 0 {
		tries = []*credential{nil}
	}
	if err := p.records.intend(name); err != nil {
		return nil, err
	}
	var errs []string
	var last error
	for _, c := range tries {
		var auth *runtimeapi.AuthConfig
		if c != nil {
			auth = c.auth
		}
		_, err := p.cfg.CRI.Images.PullImage(ctx, &runtimeapi.PullImageRequest{
			Image: &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: r.Image}, Auth: auth, SandboxConfig: r.Sandbox,
		})
		if err == nil {
			return c, nil
		}
		last = err
		errs = append(errs, cri.Message(err))
	}
	switch {
	case broken != nil:
		return nil, fmt.Errorf("%s (%s)", strings.Join(errs, ", "), strings.ReplaceAll(broken.Error(), "\n", ", "))
	case len(errs) == 1:
		return nil, last
	}
	return nil, fmt.Errorf("[%s]", strings.Join(errs, ", "))
}

// credentials that may get the image for the pod; the error tells of those that can't be read.
func (p *Puller) credentials(r Request, name string) ([]credential, error) {
	var node []byte
	if p.cfg.RootDir != "" {
		node = nodeAuth(p.cfg.RootDir)
	}
	return credentials(repository(name), r.Secrets, node)
}

// allowed tells whether a pod may use an image that is there.
func (p *Puller) allowed(r Request, name string, img Image) (bool, error) {
	creds, _ := p.credentials(r, name) // what is broken proves nothing
	return p.records.free(name, img.Ref, creds)
}

// slot waits until another pull may begin.
func (p *Puller) slot(ctx context.Context) error {
	if p.slots == nil {
		return nil
	}
	select {
	case p.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *Puller) release() {
	if p.slots != nil {
		<-p.slots
	}
}

// progress tells now and then that a pull goes on; how far it is only the runtime knows, whose
// log has it.
func (p *Puller) progress(r Request, name string) (stop func()) {
	done := make(chan struct{})
	var over sync.WaitGroup
	over.Add(1)
	go func() {
		defer over.Done()
		begun := time.Now()
		t := time.NewTicker(p.cfg.ProgressEvery)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				p.cfg.Logger.Info("still pulling image", "image", name, "for", time.Since(begun).Truncate(time.Second))
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); over.Wait() }
}

// Keep forgets who may use images that are gone; refs are those that are there.
func (p *Puller) Keep(refs map[string]bool) {
	if err := p.records.keep(refs); err != nil {
		p.cfg.Logger.Warn("forget records of images", "error", err)
	}
}

func (p *Puller) size(ctx context.Context, name string) uint64 {
	resp, err := p.cfg.CRI.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	if err != nil {
		return 0
	}
	return resp.GetImage().GetSize()
}

// Forget drops what is remembered of a pod.
func (p *Puller) Forget(pod types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := range p.backOff {
		if strings.HasPrefix(k, string(pod)+"_") {
			delete(p.backOff, k)
		}
	}
}

func (p *Puller) forget(pod types.UID, name string) {
	p.mu.Lock()
	delete(p.backOff, string(pod)+"_"+name)
	p.mu.Unlock()
}

// withTag adds :latest to a name without tag and digest and leaves the rest as the
// user wrote it: which registry a short name means is the runtime's to say.
func withTag(image string) (string, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", err
	}
	if reference.IsNameOnly(named) {
		return image + ":latest", nil
	}
	return image, nil
}

func repository(name string) string {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return name
	}
	return named.Name()
}

package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
)

type fetcher struct {
	dir       string
	reg       Registries
	transport *reach

	mu    sync.Mutex
	busy  map[string]chan struct{}
	users map[string]int // pulls that still need a blob
}

func newFetcher(dir string, reg Registries) (*fetcher, error) {
	r, err := newReach(reg)
	if err != nil {
		return nil, err
	}
	return &fetcher{dir: dir, reg: reg, transport: r, busy: map[string]chan struct{}{}, users: map[string]int{}}, nil
}

// sources lists where to look for ref: its mirrors, then its registry.
func (f *fetcher) sources(ref name.Reference) ([]name.Reference, error) {
	host := ref.Context().RegistryStr()
	var out []name.Reference
	for _, u := range slices.Concat(f.reg.Mirrors[strings.Replace(host, name.DefaultRegistry, "docker.io", 1)], f.reg.Mirrors["*"]) {
		base, err := url.Parse(u)
		if err != nil {
			return nil, fmt.Errorf("mirror %q: %w", u, err)
		}
		repo := base.Host + "/" + strings.TrimPrefix(strings.Trim(base.Path, "/")+"/"+ref.Context().RepositoryStr(), "/")
		sep := ":"
		if _, ok := ref.(name.Digest); ok {
			sep = "@"
		}
		m, err := f.parse(repo + sep + ref.Identifier())
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return append(out, ref), nil
}

func (f *fetcher) parse(ref string) (name.Reference, error) {
	r, err := name.ParseReference(ref)
	if err != nil {
		return nil, fmt.Errorf("image reference %q: %w", ref, err)
	}
	host := r.Context().RegistryStr()
	if f.transport.speaksPlain(host) {
		return name.ParseReference(ref, name.Insecure)
	}
	return r, nil
}

func (f *fetcher) options(ctx context.Context, ref name.Reference, auth Auth) []remote.Option {
	if auth == (Auth{}) {
		auth = f.reg.Auth[strings.Replace(ref.Context().RegistryStr(), name.DefaultRegistry, "docker.io", 1)]
	}
	a := authn.Anonymous
	if auth != (Auth{}) {
		a = authn.FromConfig(authn.AuthConfig{
			Username: auth.Username, Password: auth.Password, Auth: auth.Auth,
			IdentityToken: auth.IdentityToken, RegistryToken: auth.RegistryToken,
		})
	}
	return []remote.Option{
		remote.WithContext(ctx), remote.WithAuth(a), remote.WithTransport(f.transport),
		remote.WithUserAgent("skiff"),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
	}
}

// Pull brings the image from its registry, or a built-in one from skiff itself.
func (s *Store) Pull(ctx context.Context, ref string, auth Auth) (*Image, error) {
	parsed, err := s.fetcher.parse(ref)
	if err != nil {
		return nil, err
	}
	full := display(parsed.Name())
	if s.cfg.Builtin != nil {
		built, err := s.cfg.Builtin(full)
		if err != nil {
			return nil, err
		}
		if built != nil {
			return s.add(ctx, built, []string{full}, nil, nil)
		}
	}
	sources, err := s.fetcher.sources(parsed)
	if err != nil {
		return nil, err
	}
	var errs []error
	for i, src := range sources {
		own := auth
		if i < len(sources)-1 {
			own = Auth{} // a mirror is another host: the registry's credentials are not for it
		}
		img, err := s.pullOnce(ctx, parsed, src, own)
		if err == nil {
			if len(errs) > 0 {
				s.cfg.Logger.Warn("mirrors failed", "image", full, "from", src.Context().RegistryStr(), "err", errors.Join(errs...))
			}
			return img, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("pull %s: %w", full, ctx.Err())
		}
		if i < len(sources)-1 {
			err = fmt.Errorf("mirror %s: %w", src.Context().RegistryStr(), err)
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("pull %s: %w", full, errors.Join(errs...))
}

// pullOnce pulls from one source, as long as that sends something.
func (s *Store) pullOnce(ctx context.Context, ref, src name.Reference, auth Auth) (*Image, error) {
	sub, stop := s.fetcher.follow(ctx, display(ref.Name()), s.cfg.Logger)
	defer stop()
	img, err := s.pullFrom(sub, ref, src, auth)
	if err != nil && ctx.Err() == nil && sub.Err() != nil {
		return nil, context.Cause(sub)
	}
	return img, err
}

func (s *Store) pullFrom(ctx context.Context, ref, src name.Reference, auth Auth) (*Image, error) {
	desc, err := remote.Get(src, s.fetcher.options(ctx, src, auth)...)
	if err != nil {
		return nil, err
	}
	if desc.MediaType == types.DockerManifestSchema1 || desc.MediaType == types.DockerManifestSchema1Signed {
		return nil, fmt.Errorf("%s has a Docker schema 1 manifest, which is no longer supported: push the image again with a current tool", ref)
	}
	img, err := desc.Image()
	if err != nil {
		return nil, err
	}
	if m, err := img.Manifest(); err == nil {
		total := m.Config.Size
		for _, l := range m.Layers {
			total += l.Size
		}
		if p := progressOf(ctx); p != nil {
			p.total.Store(total)
		}
	}
	var tags []string
	if t, ok := ref.(name.Tag); ok {
		tags = []string{display(t.Name())}
	}
	digests := []string{display(ref.Context().Name()) + "@" + desc.Digest.String()}
	var blobs []string
	var mu sync.Mutex
	unpacked := false
	defer func() {
		for _, b := range blobs {
			if err := s.fetcher.done(b, unpacked); err != nil {
				s.cfg.Logger.Warn("layer blob not removed", "path", b, "err", err)
			}
		}
	}()
	out, err := s.add(ctx, img, tags, digests, func(ctx context.Context, chain digest.Digest, l v1.Layer) (opener, error) {
		path, err := s.fetcher.stage(ctx, l, func() bool {
			_, err := s.cfg.Layers.Get(chain)
			return err == nil
		})
		if err != nil || path == "" {
			return l.Uncompressed, err
		}
		mu.Lock()
		blobs = append(blobs, path)
		mu.Unlock()
		return func() (io.ReadCloser, error) {
			f, err := os.Open(path)
			if err != nil {
				return nil, fmt.Errorf("open layer blob: %w", err)
			}
			return decompress(f)
		}, nil
	})
	unpacked = err == nil
	return out, err
}

// stage downloads a layer's blob unless it is here, and returns its path; it stays
// there until done. There is none if another pull has unpacked the layer meanwhile. The
// digest is checked while it is read.
func (f *fetcher) stage(ctx context.Context, l v1.Layer, unpacked func() bool) (path string, err error) {
	d, err := l.Digest()
	if err != nil {
		return "", fmt.Errorf("layer digest: %w", err)
	}
	release, err := f.acquire(ctx, d.Hex)
	if err != nil {
		return "", err
	}
	defer release()
	path = filepath.Join(f.dir, d.Hex)
	f.mu.Lock()
	f.users[path]++
	f.mu.Unlock()
	defer func() {
		if err != nil {
			err = errors.Join(err, f.done(path, false))
		}
	}()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if unpacked() {
		return "", f.done(path, false)
	}
	in, err := l.Compressed()
	if err != nil {
		return "", fmt.Errorf("download layer %s: %w", d, err)
	}
	defer func() { _ = in.Close() }()
	tmp := filepath.Join(f.dir, ".partial-"+d.Hex)
	out, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return "", fmt.Errorf("download layer %s: %w", d, err)
	}
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Sync()
	}
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return "", fmt.Errorf("download layer %s: %w", d, err)
	}
	return path, nil
}

// done says that a pull no longer needs a blob. The last to need it removes it if it is
// unpacked; what an interrupted pull leaves, the next one goes on from.
func (f *fetcher) done(path string, unpacked bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users[path]--; f.users[path] > 0 {
		return nil
	}
	delete(f.users, path)
	if !unpacked {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove layer blob: %w", err)
	}
	return nil
}

func (f *fetcher) acquire(ctx context.Context, key string) (func(), error) {
	for {
		f.mu.Lock()
		wait, busy := f.busy[key]
		if !busy {
			done := make(chan struct{})
			f.busy[key] = done
			f.mu.Unlock()
			return func() {
				f.mu.Lock()
				delete(f.busy, key)
				f.mu.Unlock()
				close(done)
			}, nil
		}
		f.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

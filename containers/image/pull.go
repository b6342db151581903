package image

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
)

// Registries says how registries are reached.
type Registries struct {
	// PlainHTTP names hosts (host or host:port) that are spoken to without TLS.
	PlainHTTP []string
	// Mirrors maps a registry host, or "*" for any, to base URLs that are
	// tried in order before the registry itself: http://127.0.0.1:5000.
	// A URL with the scheme http is plain HTTP.
	Mirrors map[string][]string
	// Auth has credentials by host, for pulls that bring none of their own.
	Auth map[string]Auth
	// CAFile adds authorities to the system's for registries over HTTPS.
	CAFile string
}

// Auth is what a pull presents to the registry; the zero value is anonymous.
type Auth struct {
	Username, Password, Auth, IdentityToken, RegistryToken string
}

type fetcher struct {
	dir       string
	reg       Registries
	transport http.RoundTripper

	mu    sync.Mutex
	busy  map[string]chan struct{}
	users map[string]int // pulls that still need a blob
}

func newFetcher(dir string, reg Registries) (*fetcher, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 4
	t.IdleConnTimeout = 30 * time.Second
	if reg.CAFile != "" {
		pem, err := os.ReadFile(reg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("registries.caFile: %w", err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("registries.caFile: %s holds no PEM certificate", reg.CAFile)
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	plain := map[string]bool{}
	for _, h := range reg.PlainHTTP {
		plain[h] = true
	}
	for _, urls := range reg.Mirrors {
		for _, u := range urls {
			p, err := url.Parse(u)
			if err != nil || p.Host == "" || (p.Scheme != "http" && p.Scheme != "https") {
				return nil, fmt.Errorf("registries.mirrors: %q is not an http or https URL", u)
			}
			if p.Scheme == "http" {
				plain[p.Host] = true
			}
		}
	}
	return &fetcher{dir: dir, reg: reg, transport: &schemeGuard{t, plain}, busy: map[string]chan struct{}{}, users: map[string]int{}}, nil
}

// schemeGuard speaks plain HTTP to the hosts named for it, and to them alone:
// the registry library would fall back to it for any local-looking host.
type schemeGuard struct {
	next  http.RoundTripper
	plain map[string]bool
}

func (g *schemeGuard) RoundTrip(r *http.Request) (*http.Response, error) {
	plain := g.plain[r.URL.Host] || g.plain[r.URL.Hostname()]
	if r.URL.Scheme == "http" && !plain {
		return nil, fmt.Errorf("%s is not among the registries that may be spoken to over plain HTTP", r.URL.Host)
	}
	if r.URL.Scheme == "https" && plain {
		return nil, fmt.Errorf("%s is named for plain HTTP", r.URL.Host)
	}
	return g.next.RoundTrip(r)
}

// CloseIdleConnections lets the registry client end what it no longer needs.
func (g *schemeGuard) CloseIdleConnections() {
	if c, ok := g.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
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
	if g := f.transport.(*schemeGuard); g.plain[host] || g.plain[strings.Split(host, ":")[0]] {
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
	for _, src := range sources {
		img, err := s.pullFrom(ctx, parsed, src, auth)
		if err == nil {
			return img, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("pull %s: %w", full, ctx.Err())
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("pull %s: %w", full, errors.Join(errs...))
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

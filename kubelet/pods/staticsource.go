package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// How often sources of static pods are looked at, changes of files apart, and what is taken
// from a URL, as upstream.
const (
	sourceEvery = 20 * time.Second
	maxManifest = 10 << 20
)

// found is what a source of static pods holds now. Places that hold none for an error are
// in failed.
type found struct {
	pods   []*corev1.Pod
	failed map[string]error
}

// watchManifests runs the pods whose manifests are in the file or directory, and shows
// them to the API server as mirror pods.
func (m *Manager) watchManifests(ctx context.Context) {
	if m.cfg.ManifestDir == "" {
		m.setStatic(ctx, fileSource, found{})
		return
	}
	var events chan fsnotify.Event
	if w, err := fsnotify.NewWatcher(); err != nil {
		m.log.Warn("watch manifests; reading them every 20 s instead", "error", err)
	} else {
		defer w.Close()
		dir := m.cfg.ManifestDir
		if fi, err := os.Stat(dir); err == nil && !fi.IsDir() {
			dir = filepath.Dir(dir) // editors replace files
		}
		if err := w.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			m.log.Warn("watch manifests; reading them every 20 s instead", "error", err)
		}
		events = w.Events
	}
	ticker := time.NewTicker(sourceEvery)
	defer ticker.Stop()
	for {
		if f, err := readManifests(m.cfg.ManifestDir, m.cfg.NodeName); err != nil {
			m.log.Warn("read manifests", "error", err)
		} else {
			m.setStatic(ctx, fileSource, f)
		}
		select {
		case <-ctx.Done():
			return
		case <-events:
			// Editors write in several steps: take them as one.
			settle := time.NewTimer(100 * time.Millisecond)
			for more := true; more; {
				select {
				case <-events:
				case <-settle.C:
					more = false
				case <-ctx.Done():
					settle.Stop()
					return
				}
			}
		case <-ticker.C:
		}
	}
}

// readManifests reads a file, or those of a directory, in the order of their names. The
// error is one of the whole; what runs stays then.
func readManifests(path, node string) (found, error) {
	out := found{failed: map[string]error{}}
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	files := []string{path}
	if fi.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return out, err
		}
		files = files[:0]
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".") {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
	}
	for _, f := range files {
		fi, err := os.Stat(f) // links lead to manifests too
		if err == nil && fi.IsDir() {
			continue
		}
		var raw []byte
		if err == nil && !fi.Mode().IsRegular() {
			err = errors.New("not a regular file")
		}
		if err == nil {
			raw, err = os.ReadFile(f)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone since
		}
		var pods []*corev1.Pod
		if err == nil {
			pods, err = staticPods(raw, origin{fileSource, f, node})
		}
		if err != nil {
			out.failed[f] = err
			continue
		}
		out.pods = append(out.pods, pods...)
	}
	return out, nil
}

// watchURL runs the pods that a URL holds.
func (m *Manager) watchURL(ctx context.Context) {
	if m.cfg.ManifestURL == "" {
		m.setStatic(ctx, httpSource, found{})
		return
	}
	ticker := time.NewTicker(sourceEvery)
	defer ticker.Stop()
	client := &http.Client{Timeout: 10 * time.Second}
	for {
		pods, err := fetchManifest(ctx, client, m.cfg.ManifestURL, m.cfg.ManifestURLHeader, m.cfg.NodeName)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			// What it held goes on: a server that fails takes no pods away.
			m.tellFailed(httpSource, map[string]error{m.cfg.ManifestURL: err})
		default:
			m.setStatic(ctx, httpSource, found{pods: pods})
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func fetchManifest(ctx context.Context, client *http.Client, url string, header http.Header, node string) ([]*corev1.Pod, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxManifest+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer: %w", err)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the server answers %s", resp.Status)
	case len(raw) == 0:
		return nil, errors.New("the server answers nothing")
	case len(raw) > maxManifest:
		return nil, fmt.Errorf("the answer is larger than %d bytes", maxManifest)
	}
	return staticPods(raw, origin{httpSource, url, node})
}

// setStatic makes what a source holds the static pods of that source.
func (m *Manager) setStatic(ctx context.Context, source string, f found) {
	if f.failed == nil {
		f.failed = map[string]error{}
	}
	m.mu.Lock()
	now := map[types.UID]bool{}
	names := map[string]types.UID{}
	for uid, p := range m.static {
		if p.Annotations[sourceAnnotation] != source {
			names[p.Namespace+"/"+p.Name] = uid
		}
	}
	// Of two with one name the one that runs goes on, else the first counts.
	slices.SortStableFunc(f.pods, func(a, b *corev1.Pod) int {
		_, x := m.static[a.UID]
		_, y := m.static[b.UID]
		switch {
		case x && !y:
			return -1
		case y && !x:
			return 1
		}
		return 0
	})
	var keep []*corev1.Pod
	for _, p := range f.pods {
		key := p.Namespace + "/" + p.Name
		if uid, taken := names[key]; taken && uid != p.UID {
			f.failed[key] = errors.New("another manifest has a pod of that name and namespace: one of them runs")
			continue
		} else if taken {
			continue // the same, twice
		}
		names[key] = p.UID
		now[p.UID] = true
		keep = append(keep, p)
	}
	for uid, p := range m.static {
		if p.Annotations[sourceAnnotation] == source && !now[uid] {
			delete(m.static, uid)
			if w := m.workers[uid]; w != nil {
				w.remove()
			}
		}
	}
	for _, p := range keep {
		if m.static[p.UID] == nil {
			m.static[p.UID] = p
		}
	}
	m.startStatic()
	if m.sources == nil {
		m.sources = map[string]bool{}
	}
	m.sources[source] = true
	m.fileDone = m.sources[fileSource] && m.sources[httpSource]
	m.mu.Unlock()
	m.tellFailed(source, f.failed)
	m.syncMirrors(ctx)
}

// startStatic gives static pods workers, but for those that follow one of their name which
// has not ended yet: two would share what bears the name. Must hold mu.
func (m *Manager) startStatic() {
	busy := map[string]types.UID{}
	for uid, w := range m.workers {
		if p := w.desired(); m.static[uid] == nil && isStatic(p) {
			busy[p.Namespace+"/"+p.Name] = uid
		}
	}
	for uid, p := range m.static {
		if _, wait := busy[p.Namespace+"/"+p.Name]; !wait && m.workers[uid] == nil {
			m.worker(p).update(p)
		}
	}
}

// tellFailed logs what is wrong with manifests, each once as long as it stays so.
func (m *Manager) tellFailed(source string, failed map[string]error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	told := map[string]string{}
	for place, err := range failed {
		told[place] = err.Error()
		if m.failed[source][place] != err.Error() {
			m.log.Error("static pod not run", "manifest", place, "error", err)
		}
	}
	if m.failed == nil {
		m.failed = map[string]map[string]string{}
	}
	m.failed[source] = told
}

// StaticErrors is how many manifests of static pods cannot be used.
func (m *Manager) StaticErrors() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, places := range m.failed {
		n += len(places)
	}
	return n
}

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// layout is a read-only registry (OCI distribution specification v1.1, pull only) over
// the files of an OCI layout.
type layout struct {
	dir string
	// byTag finds a manifest by repository:tag, without the registry's host.
	byTag map[string]descriptor
	// byDigest knows the media type of each manifest; all else is a blob.
	byDigest map[string]descriptor
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
}

func open(dir string) (*layout, error) {
	text, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		return nil, fmt.Errorf("open layout: %w", err)
	}
	var index struct {
		Manifests []descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("read index of %s: %w", dir, err)
	}
	l := &layout{dir: dir, byTag: map[string]descriptor{}, byDigest: map[string]descriptor{}}
	for _, d := range index.Manifests {
		name := d.Annotations["org.opencontainers.image.ref.name"]
		_, repositoryTag, found := strings.Cut(name, "/")
		if !found || !strings.Contains(repositoryTag, ":") {
			return nil, fmt.Errorf("image %s of %s: name %q is not host/repository:tag", d.Digest, dir, name)
		}
		l.byTag[repositoryTag] = d
		l.byDigest[d.Digest] = d
	}
	return l, nil
}

func (l *layout) names() []string {
	var names []string
	for _, d := range l.byTag {
		names = append(names, d.Annotations["org.opencontainers.image.ref.name"])
	}
	slices.Sort(names)
	return names
}

var (
	route  = regexp.MustCompile(`^/v2/(.+)/(manifests|blobs)/([^/]+)$`)
	digest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

func (l *layout) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		refuse(w, http.StatusMethodNotAllowed, "UNSUPPORTED", "this registry only serves pulls")
		return
	}
	if r.URL.Path == "/v2/" || r.URL.Path == "/v2" {
		w.WriteHeader(http.StatusOK)
		return
	}
	m := route.FindStringSubmatch(r.URL.Path)
	if m == nil {
		refuse(w, http.StatusNotFound, "NAME_UNKNOWN", "no such route")
		return
	}
	repository, kind, reference := m[1], m[2], m[3]
	if kind == "manifests" {
		d, ok := l.byDigest[reference]
		if !ok {
			d, ok = l.byTag[repository+":"+reference]
		}
		if !ok {
			refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN", repository+":"+reference+" is not in the layout")
			return
		}
		w.Header().Set("Docker-Content-Digest", d.Digest)
		w.Header().Set("Content-Type", d.MediaType)
		l.serveBlob(w, r, d.Digest)
		return
	}
	if !digest.MatchString(reference) {
		refuse(w, http.StatusBadRequest, "DIGEST_INVALID", reference+" is no sha256 digest")
		return
	}
	w.Header().Set("Docker-Content-Digest", reference)
	w.Header().Set("Content-Type", "application/octet-stream")
	l.serveBlob(w, r, reference)
}

func (l *layout) serveBlob(w http.ResponseWriter, r *http.Request, d string) {
	path := filepath.Join(l.dir, "blobs", "sha256", strings.TrimPrefix(d, "sha256:"))
	f, err := os.Open(path)
	if err != nil {
		w.Header().Del("Docker-Content-Digest")
		refuse(w, http.StatusNotFound, "BLOB_UNKNOWN", d+" is not in the layout")
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		refuse(w, http.StatusInternalServerError, "UNKNOWN", err.Error())
		return
	}
	http.ServeContent(w, r, "", info.ModTime(), f)
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"errors": []map[string]string{{"code": code, "message": message}}})
}

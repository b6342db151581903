package api

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

var kubeconfig = flag.String("kubeconfig", "", "run the scripts against this cluster's API server")

// server is the one under test.
type server struct {
	base              string
	client, anonymous *http.Client
}

// target is the server of -kubeconfig, or one of ours with these ranges of cluster IPs.
func target(t *testing.T, serviceCIDRs ...string) *server {
	var c *rest.Config
	if *kubeconfig == "" {
		var ranges []netip.Prefix
		for _, p := range serviceCIDRs {
			ranges = append(ranges, netip.MustParsePrefix(p))
		}
		c = servertest.FullOn(t, ranges).Admin()
	} else {
		var err error
		if c, err = clientcmd.BuildConfigFromFlags("", *kubeconfig); err != nil {
			t.Fatal(err)
		}
	}
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	anonymous, err := rest.HTTPClientFor(rest.AnonymousClientConfig(c))
	if err != nil {
		t.Fatal(err)
	}
	return &server{base: strings.TrimSuffix(c.Host, "/"), client: client, anonymous: anonymous}
}

// media are the content types that a body may be given as.
var media = map[string]string{
	"json":      "application/json",
	"yaml":      "application/yaml",
	"jsonpatch": "application/json-patch+json",
	"merge":     "application/merge-patch+json",
	"strategic": "application/strategic-merge-patch+json",
	"apply":     "application/apply-patch+yaml",
}

// body is the content and type of a body that is a file or stands in the line.
func (s *script) body(text string) ([]byte, string) {
	first, rest, inline := strings.Cut(text, " ")
	switch {
	case text == "":
		return nil, ""
	case text[0] == '{' || text[0] == '[':
		return []byte(text), media["json"]
	case inline && media[first] != "":
		return []byte(rest), media[first]
	}
	return s.content(text), media[strings.TrimPrefix(filepath.Ext(text), ".")]
}

// request sends a request with what the script set for it.
func (s *script) request(method, path, body string) {
	data, media := s.body(body)
	s.send(method, path, data, media)
}

// until repeats a request until its status is the one given.
func (s *script) until(status, method, path, body string) {
	header, anonymous, only := s.header, s.anonymous, s.only
	for {
		s.request(method, path, body)
		if strconv.Itoa(s.resp.StatusCode) == status {
			s.only = only
			s.keep()
			return
		}
		select {
		case <-s.ctx.Done():
			s.fatalf("still %d: %s", s.resp.StatusCode, s.data)
		case <-time.After(10 * time.Millisecond):
		}
		s.header, s.anonymous = header, anonymous
	}
}

func (s *script) do(req *http.Request, media string) *http.Response {
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "apitest/1")
	if media != "" {
		req.Header.Set("Content-Type", media)
	}
	for k, v := range s.header {
		req.Header[k] = v
	}
	client := s.target.client
	if s.anonymous {
		client = s.target.anonymous
	}
	s.header, s.anonymous = http.Header{}, false
	resp, err := client.Do(req)
	if err != nil {
		s.fatalf("%v", err)
	}
	return resp
}

func (s *script) send(method, path string, body []byte, media string) {
	req, err := http.NewRequestWithContext(s.ctx, method, s.target.base+path, bytes.NewReader(body))
	if err != nil {
		s.fatalf("%v", err)
	}
	s.resp = s.do(req, media)
	defer s.resp.Body.Close()
	if s.data, err = io.ReadAll(s.resp.Body); err != nil {
		s.fatalf("%v", err)
	}
}

// watching is a watch in progress.
type watching struct {
	dec *json.Decoder
}

type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

func (s *script) watch(id, path string) {
	req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, s.target.base+path, nil)
	if err != nil {
		s.fatalf("%v", err)
	}
	s.resp = s.do(req, "")
	s.t.Cleanup(func() { s.resp.Body.Close() })
	s.data = nil
	if s.resp.StatusCode != http.StatusOK {
		if s.data, err = io.ReadAll(s.resp.Body); err != nil {
			s.fatalf("%v", err)
		}
		s.keep()
		return
	}
	s.keep()
	s.watches[id] = &watching{json.NewDecoder(s.resp.Body)}
}

func (w *watching) next(s *script) event {
	if w == nil {
		s.fatalf("no such watch: %s", s.data)
	}
	var ev event
	if err := w.dec.Decode(&ev); err != nil {
		s.fatalf("next event: %v", err)
	}
	return ev
}

func (w *watching) ended(s *script) {
	var ev event
	if err := w.dec.Decode(&ev); err != io.EOF {
		s.fatalf("the watch goes on: %v %s %s", err, ev.Type, ev.Object)
	}
}

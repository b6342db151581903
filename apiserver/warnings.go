package apiserver

import (
	"net/http"
	"sync"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Limits on warnings of one response, in runes: once the total is reached, all are cut
// to the short length, and what then still does not fit is left out.
const (
	maxWarnings  = 4 << 10
	shortWarning = 256
)

// warnings puts each distinct warning into a Warning header (RFC 7234, code 299).
type warnings struct {
	header http.Header

	mu      sync.Mutex
	seen    map[string]bool
	written int
}

// AddWarning implements warning.Recorder.
func (r *warnings) AddWarning(agent, text string) {
	if text == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if agent == "" {
		agent = "-"
	}
	key := agent + "\x00" + text
	if r.seen[key] {
		return
	}
	if r.written+len(text) > maxWarnings {
		runes := []rune(text)
		text = string(runes[:min(len(runes), shortWarning)])
		if r.written+len(text) > maxWarnings {
			return
		}
	}
	h, err := utilnet.NewWarningHeader(299, agent, text)
	if err != nil {
		return // text that no header can carry
	}
	if r.seen == nil {
		r.seen = map[string]bool{}
	}
	r.seen[key] = true
	r.written += len(text)
	r.header.Add("Warning", h)
}

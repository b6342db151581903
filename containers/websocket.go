package containers

import (
	"fmt"
	"net/http"
	"net/url"

	"k8s.io/apimachinery/pkg/util/proxy"
	translate "k8s.io/apiserver/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// serveWebSocket serves the WebSocket protocols of KEP-4006, which the library that serves SPDY
// and the older ones does not have: v5.channel.k8s.io for exec and attach, SPDY inside of
// WebSocket for ports. Either becomes a SPDY stream of this server itself, as the API server and
// the kubelet make it one of theirs. It returns false, and has answered nothing, when the client
// speaks neither.
func (s *streamServer) serveWebSocket(w http.ResponseWriter, req *http.Request, kind string, pending any) bool {
	var handler func(u *url.URL) http.Handler
	switch x := pending.(type) {
	case *runtimeapi.PortForwardRequest:
		if !wsstream.IsWebSocketRequestWithTunnelingProtocol(req) {
			return false
		}
		handler = func(u *url.URL) http.Handler {
			return translate.NewTunnelingHandler(proxy.NewUpgradeAwareHandler(u, nil, false, true, streamResponder{}))
		}
	case commandRequest:
		if !wsstream.IsWebSocketRequestWithStreamCloseProtocol(req) {
			return false
		}
		handler = func(u *url.URL) http.Handler {
			return translate.NewStreamTranslatorHandler(u, nil, 0, translate.Options{
				Stdin: x.GetStdin(), Stdout: x.GetStdout(), Stderr: x.GetStderr(), Tty: x.GetTty(),
			})
		}
	default:
		return false
	}
	inner, err := s.url(kind, pending)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return true
	}
	u, err := url.Parse(inner)
	if err != nil {
		http.Error(w, fmt.Sprintf("parse own streaming URL: %v", err), http.StatusInternalServerError)
		return true
	}
	handler(u).ServeHTTP(w, req)
	return true
}

// commandRequest is an exec or an attach.
type commandRequest interface {
	GetStdin() bool
	GetStdout() bool
	GetStderr() bool
	GetTty() bool
}

// streamResponder answers what kept a proxy from its other end.
type streamResponder struct{}

func (streamResponder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusBadGateway)
}

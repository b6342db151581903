package server

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/proxy"
	translate "k8s.io/apiserver/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/skiff-k8s/skiff/kubelet/cri"
)

// target resolves /<ns>/<pod>[/<uid>]/<container> to a running container; it has
// answered the request itself when it returns "".
func (s *Server) target(w http.ResponseWriter, r *http.Request, parts []string) string {
	var uid types.UID
	switch len(parts) {
	case 3:
	case 4:
		uid, parts = types.UID(parts[2]), []string{parts[0], parts[1], parts[3]}
	default:
		http.NotFound(w, r)
		return ""
	}
	pod := s.cfg.Pods.Find(parts[0], parts[1], uid)
	if pod == nil {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return ""
	}
	rt, err := s.cfg.CRI.PodStatus(r.Context(), pod.UID)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return ""
	}
	c := rt.Find(parts[2])
	if c == nil || c.State != cri.StateRunning {
		http.Error(w, fmt.Sprintf("container not found (%q)", parts[2]), http.StatusNotFound)
		return ""
	}
	return c.ID
}

func flag(q url.Values, name string) bool { return q.Get(name) == "1" || q.Get(name) == "true" }

func (s *Server) exec(w http.ResponseWriter, r *http.Request, parts []string) {
	id := s.target(w, r, parts)
	if id == "" {
		return
	}
	q := r.URL.Query()
	req := &runtimeapi.ExecRequest{ContainerId: id, Cmd: q["command"], Stdin: flag(q, "input"), Stdout: flag(q, "output"), Stderr: flag(q, "error"), Tty: flag(q, "tty")}
	if req.Tty {
		req.Stderr = false
	}
	if !req.Stdin && !req.Stdout && !req.Stderr {
		http.Error(w, "you must specify at least 1 of stdin, stdout, stderr", http.StatusBadRequest)
		return
	}
	resp, err := s.cfg.CRI.Runtime.Exec(r.Context(), req)
	if err != nil {
		http.Error(w, cri.Message(err), http.StatusInternalServerError)
		return
	}
	s.command(w, r, resp.Url, translate.Options{Stdin: req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr, Tty: req.Tty})
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request, parts []string) {
	id := s.target(w, r, parts)
	if id == "" {
		return
	}
	q := r.URL.Query()
	req := &runtimeapi.AttachRequest{ContainerId: id, Stdin: flag(q, "input"), Stdout: flag(q, "output"), Stderr: flag(q, "error"), Tty: flag(q, "tty")}
	if req.Tty {
		req.Stderr = false
	}
	if !req.Stdin && !req.Stdout && !req.Stderr {
		http.Error(w, "you must specify at least 1 of stdin, stdout, stderr", http.StatusBadRequest)
		return
	}
	resp, err := s.cfg.CRI.Runtime.Attach(r.Context(), req)
	if err != nil {
		http.Error(w, cri.Message(err), http.StatusInternalServerError)
		return
	}
	s.command(w, r, resp.Url, translate.Options{Stdin: req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr, Tty: req.Tty})
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request, parts []string) {
	var uid types.UID
	switch len(parts) {
	case 2:
	case 3:
		uid = types.UID(parts[2])
	default:
		http.NotFound(w, r)
		return
	}
	pod := s.cfg.Pods.Find(parts[0], parts[1], uid)
	if pod == nil {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return
	}
	rt, err := s.cfg.CRI.PodStatus(r.Context(), pod.UID)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if len(rt.Sandboxes) == 0 || !rt.Sandboxes[0].Ready {
		http.Error(w, fmt.Sprintf("failed to find sandboxID for pod %s_%s(%s)", pod.Name, pod.Namespace, pod.UID), http.StatusNotFound)
		return
	}
	// Clients of the older WebSocket protocols name the ports up front, SPDY ones per stream.
	var ports []int32
	for _, v := range r.URL.Query()["port"] {
		for _, f := range strings.Split(v, ",") {
			n, err := strconv.ParseUint(f, 10, 16)
			if err != nil || n == 0 {
				http.Error(w, fmt.Sprintf("port %q is not a number from 1 to 65535", f), http.StatusBadRequest)
				return
			}
			ports = append(ports, int32(n))
		}
	}
	resp, err := s.cfg.CRI.Runtime.PortForward(r.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: rt.Sandboxes[0].ID, Port: ports})
	if err != nil {
		http.Error(w, cri.Message(err), http.StatusInternalServerError)
		return
	}
	s.stream(w, r, resp.Url, func(_ *url.URL, h http.Handler) http.Handler {
		if wsstream.IsWebSocketRequestWithTunnelingProtocol(r) {
			return translate.NewTunnelingHandler(h)
		}
		return h
	})
}

// command joins a client of exec or attach with the runtime's streaming server. What speaks
// v5.channel.k8s.io over WebSocket is translated to SPDY, which all runtimes have (KEP-4006,
// ExtendWebSocketsToKubelet).
func (s *Server) command(w http.ResponseWriter, r *http.Request, target string, o translate.Options) {
	s.stream(w, r, target, func(u *url.URL, h http.Handler) http.Handler {
		if wsstream.IsWebSocketRequestWithStreamCloseProtocol(r) {
			return translate.NewStreamTranslatorHandler(u, nil, 0, o)
		}
		return h
	})
}

// stream joins the client with the runtime's streaming server, SPDY or WebSocket as they come but
// for what translated does.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, target string, translated func(u *url.URL, h http.Handler) http.Handler) {
	u, err := url.Parse(target)
	if err != nil {
		http.Error(w, fmt.Sprintf("the runtime's streaming URL %q: %v", target, err), http.StatusInternalServerError)
		return
	}
	translated(u, proxy.NewUpgradeAwareHandler(u, nil, false, true, responder{s})).ServeHTTP(w, r)
}

type responder struct{ s *Server }

func (p responder) Error(w http.ResponseWriter, r *http.Request, err error) {
	p.s.cfg.Logger.Debug("stream", "path", r.URL.Path, "error", err)
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

// runCommand runs a command and answers its output.
func (s *Server) runCommand(w http.ResponseWriter, r *http.Request, parts []string) {
	id := s.target(w, r, parts)
	if id == "" {
		return
	}
	resp, err := s.cfg.CRI.Runtime.ExecSync(r.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: strings.Split(r.URL.Query().Get("cmd"), " "), Timeout: int64((10 * time.Minute).Seconds())})
	if err != nil {
		http.Error(w, cri.Message(err), http.StatusInternalServerError)
		return
	}
	if resp.ExitCode != 0 {
		http.Error(w, fmt.Sprintf("command exited with %d: %s", resp.ExitCode, append(resp.Stdout, resp.Stderr...)), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(append(resp.Stdout, resp.Stderr...))
}

// findStatus is the status of any container of the pod.
func findStatus(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

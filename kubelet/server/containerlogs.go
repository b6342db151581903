package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/kubelet/logs"
)

func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request, parts []string) {
	if len(parts) != 3 {
		http.Error(w, "the path is /containerLogs/<namespace>/<pod>/<container>", http.StatusBadRequest)
		return
	}
	namespace, name, container := parts[0], parts[1], parts[2]
	pod := s.cfg.Pods.Find(namespace, name, "")
	if pod == nil {
		http.Error(w, fmt.Sprintf("pod %q does not exist", name), http.StatusNotFound)
		return
	}
	if !hasContainer(pod, container) {
		http.Error(w, fmt.Sprintf("container %q not found in pod %q", container, name), http.StatusNotFound)
		return
	}
	o, stream, previous, err := logOptions(r.URL.Query(), time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	id, err := logContainer(pod, container, previous)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	st, err := s.cfg.CRI.Runtime.ContainerStatus(r.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		http.Error(w, fmt.Sprintf("unable to retrieve container logs for %s", s.runtimeID(pod, container, id)), http.StatusBadRequest)
		return
	}
	o.Running = func(ctx context.Context) (bool, error) {
		st, err := s.cfg.CRI.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			return false, err
		}
		return st.Status.State == runtimeapi.ContainerState_CONTAINER_RUNNING, nil
	}
	out := &flusher{w: w, f: http.NewResponseController(w)}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	_ = out.f.Flush() // the client sees that logs will come, even if none do yet
	var stdout, stderr io.Writer = out, out
	switch stream {
	case "Stdout":
		stderr = nil
	case "Stderr":
		stdout = nil
	}
	if err := logs.Read(r.Context(), st.Status.LogPath, o, stdout, stderr); err != nil {
		s.cfg.Logger.Debug("read container log", "error", err)
		fmt.Fprintf(out, "failed to read container log: %v\n", err)
	}
}

func (s *Server) runtimeID(pod *corev1.Pod, container, id string) string {
	if st := findStatus(pod, container); st != nil && strings.HasSuffix(st.ContainerID, id) {
		return st.ContainerID
	}
	return id
}

// flusher sends every write at once.
type flusher struct {
	w io.Writer
	f *http.ResponseController
}

func (f *flusher) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		err = f.f.Flush()
	}
	return n, err
}

func hasContainer(pod *corev1.Pod, name string) bool {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return true
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return true
		}
	}
	return false
}

func logOptions(q url.Values, now time.Time) (o logs.Options, stream string, previous bool, err error) {
	number := func(name string) *int64 {
		v := q.Get(name)
		if v == "" || err != nil {
			return nil
		}
		n, perr := strconv.ParseInt(v, 10, 64)
		if perr != nil || n < 0 {
			err = fmt.Errorf("%s is %q: it must be a number that is not negative", name, v)
			return nil
		}
		return &n
	}
	boolean := func(name string) bool { b, _ := strconv.ParseBool(q.Get(name)); return b }
	o.Follow, o.Timestamps, previous = boolean("follow"), boolean("timestamps"), boolean("previous")
	o.Tail, o.LimitBytes = number("tailLines"), number("limitBytes")
	if v := q.Get("tail"); v != "" && v != "all" && o.Tail == nil {
		o.Tail = number("tail")
	}
	if n := number("sinceSeconds"); n != nil {
		o.Since = now.Add(-time.Duration(*n) * time.Second)
	}
	if v := q.Get("sinceTime"); v != "" && err == nil {
		if o.Since, err = time.Parse(time.RFC3339, v); err != nil {
			err = fmt.Errorf("sinceTime is %q: it must be a RFC 3339 time", v)
		}
	}
	return o, q.Get("stream"), previous, err
}

// logContainer is the run whose log is meant.
func logContainer(pod *corev1.Pod, name string, previous bool) (string, error) {
	st := findStatus(pod, name)
	if st == nil {
		return "", fmt.Errorf("container %q in pod %q is not available", name, pod.Name)
	}
	id := ""
	last := st.LastTerminationState.Terminated
	switch {
	case previous:
		if last == nil || last.ContainerID == "" {
			return "", fmt.Errorf("previous terminated container %q in pod %q not found", name, pod.Name)
		}
		id = last.ContainerID
	case st.State.Running != nil:
		id = st.ContainerID
	case st.State.Terminated != nil && st.State.Terminated.ContainerID != "":
		id = st.State.Terminated.ContainerID
	case st.State.Terminated != nil || last != nil:
		if last == nil || last.ContainerID == "" {
			return "", fmt.Errorf("container %q in pod %q is terminated", name, pod.Name)
		}
		id = last.ContainerID
	case st.State.Waiting != nil:
		switch reason := st.State.Waiting.Reason; reason {
		case "ErrImagePull":
			return "", fmt.Errorf("container %q in pod %q is waiting to start: image can't be pulled", name, pod.Name)
		case "ImagePullBackOff":
			return "", fmt.Errorf("container %q in pod %q is waiting to start: trying and failing to pull image", name, pod.Name)
		default:
			return "", fmt.Errorf("container %q in pod %q is waiting to start: %s", name, pod.Name, reason)
		}
	default:
		return "", fmt.Errorf("container %q in pod %q is waiting to start - no logs yet", name, pod.Name)
	}
	if _, bare, ok := strings.Cut(id, "://"); ok {
		id = bare
	}
	return id, nil
}

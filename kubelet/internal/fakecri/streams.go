package fakecri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Attach implements the RuntimeService.
func (s *Server) Attach(context.Context, *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return &runtimeapi.AttachResponse{Url: s.url("/attach/t")}, nil
}

// PortForward implements the RuntimeService.
func (s *Server) PortForward(context.Context, *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return &runtimeapi.PortForwardResponse{Url: s.url("/portforward/t")}, nil
}

// Exec implements the RuntimeService.
func (s *Server) Exec(context.Context, *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return &runtimeapi.ExecResponse{Url: s.url("/exec/t")}, nil
}

func (s *Server) url(path string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.StreamURL + path
}

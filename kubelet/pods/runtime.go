package pods

import "fmt"

// runtimeReady says why nothing can be started, or nil. That the runtime does not answer at
// all is told by its calls.
func (m *Manager) runtimeReady() error {
	if m.cfg.Runtime == nil {
		return nil
	}
	if c := m.cfg.Runtime(); !c.Runtime && c.RuntimeReason != "" {
		return fmt.Errorf("container runtime not ready: %s", c.RuntimeReason)
	}
	return nil
}

// supportsUsers says why pods of a handler can't have user namespaces, or nil. Runtimes
// that don't tell the features of their handlers have none (KEP-127).
func (m *Manager) supportsUsers(handler string) error {
	if m.cfg.Runtime == nil {
		return nil
	}
	known := m.cfg.Runtime().Handlers
	for _, h := range known {
		if h.Name == handler {
			if h.GetFeatures().GetUserNamespaces() {
				return nil
			}
			return fmt.Errorf("hostUsers: false: runtime handler %q does not support user namespaces on this node", handler)
		}
	}
	if len(known) == 0 {
		return fmt.Errorf("hostUsers: false: the container runtime does not support user namespaces")
	}
	return fmt.Errorf("hostUsers: false: the container runtime knows no handler %q", handler)
}

// supportsImageVolumes says why an image can't be mounted, or nil. CRI has no feature for it;
// runtimes older than the features of handlers pass over what they don't know of a mount.
func (m *Manager) supportsImageVolumes() error {
	if m.cfg.Runtime == nil || len(m.cfg.Runtime().Handlers) > 0 {
		return nil
	}
	return fmt.Errorf("the container runtime does not support image volumes")
}

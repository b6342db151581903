// Command launcher is the only place where libcontainer is linked in. It makes
// one container or runs one process in an existing container, says so on its
// control descriptor and leaves. It is a static cgo binary of its own because
// libcontainer enters namespaces from C before the Go runtime starts, and
// because re-executing a large binary costs tens of milliseconds a time.
//
// It must not hold state, read the network or know anything of CRI: its input
// is an OCI runtime spec, its output one JSON message per event.
//
// It is built into containers/oci/bin by containers/build.mk.
package main

// Command registry serves the images of an OCI layout over plain HTTP, whatever
// registry their names have: tests with the pull policy Always need one. With the names
// of those registries in /etc/hosts and in skiff up --plain-http-registry, pulls come here.
// It reads the layout's files as they are asked for and takes nothing in.
//
//	registry -layout DIR [-listen 127.0.0.1:80]
package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
)

func main() {
	dir := flag.String("layout", "", "directory of the OCI layout")
	listen := flag.String("listen", "127.0.0.1:80", "address to listen on")
	flag.Parse()
	if err := run(*dir, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "registry:", err)
		os.Exit(1)
	}
}

func run(dir, listen string) error {
	if dir == "" {
		return errors.New("-layout is required")
	}
	l, err := open(dir)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	for _, name := range l.names() {
		fmt.Println(name)
	}
	return http.Serve(ln, l)
}

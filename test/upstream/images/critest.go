package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

const criRegistry = "gcr.io/k8s-staging-cri-tools/"

// criImages is the catalog of critest (sigs.k8s.io/cri-tools, its folder images/ and the
// constants of pkg/validate). What is pulled and removed again and again is small: busybox
// is the path of a static one.
func criImages(programs, busybox string) []image {
	pause := file{path: "pause", from: filepath.Join(programs, "pause"), mode: 0o755}
	small := func(user string, names ...string) image {
		applets := []file{
			{path: "bin/busybox", from: busybox, mode: 0o755}, {path: "tmp", dir: true, mode: 0o1777},
			{path: "etc/passwd", text: "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www-data:/var/www:/bin/false\ndefault-user:x:1000:1000:Linux User,,,:/home/default-user:/bin/sh\n"},
			{path: "etc/group", text: "root:x:0:\nwww-data:x:33:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n"},
		}
		for _, a := range []string{"sh", "cat", "echo", "id", "ls", "sleep", "touch", "top", "true"} {
			applets = append(applets, file{path: "bin/" + a, link: "busybox"})
		}
		return image{names: names, scratch: true, files: applets, cmd: []string{"sh"}, user: user}
	}
	nginx := func(name, port string) image {
		return image{
			names: []string{name},
			files: []file{
				// A test looks for a word in a text with zero bytes.
				{path: "usr/local/bin/grep", link: "/usr/bin/busybox"},
				{path: "etc/nginx/nginx.conf", text: criNginxConf(port)},
				{path: "usr/share/nginx/html/index.html", text: "<html><head><title>Welcome to nginx!</title></head><body><h1>Welcome to nginx!</h1></body></html>\n"},
				{path: "var/log/nginx", dir: true, mode: 0o755}, {path: "var/lib/nginx", dir: true, mode: 0o755}, {path: "var/run", link: "/run"},
			},
			entrypoint: []string{"nginx", "-g", "daemon off;"}, stopSignal: "SIGQUIT",
		}
	}
	// Its log must name the program.
	httpd := nginx(registry+"httpd:2.4.39-4", "80")
	httpd.entrypoint = []string{"sh", "-c", "echo a stand-in for httpd; exec nginx -g 'daemon off;'"}
	out := []image{
		{names: []string{registry + "busybox:1.29-2"}, files: criBusyboxFiles(), cmd: []string{"sh"}},
		nginx(registry+"nginx:1.14-2", "80"),
		httpd,
		nginx(criRegistry+"hostnet-nginx-amd64:latest", "12003"),
		{names: []string{registry + "nonewprivs:1.3"}, files: []file{{path: "usr/local/bin/nnp", from: filepath.Join(programs, "nnp"), mode: 0o6755}},
			entrypoint: []string{"nnp"}},
		{names: []string{"registry.k8s.io/pause:3.9", "k8s.gcr.io/pause:3.9"}, scratch: true, files: []file{pause}, entrypoint: []string{"/pause"}, user: "65535:65535"},
		small("1002", criRegistry+"test-image-user-uid:latest"),
		small("www-data", criRegistry+"test-image-user-username:latest"),
		small("1003:1004", criRegistry+"test-image-user-uid-group:latest"),
		small("www-data:1004", criRegistry+"test-image-user-username-group:latest"),
		small("1000", criRegistry+"test-image-predefined-group:latest"),
		small("", criRegistry+"test-image-tags:1", criRegistry+"test-image-tags:2", criRegistry+"test-image-tags:3"),
	}
	for _, name := range []string{"test-image-latest:latest", "test-image-tag:test", "test-image-tag:all", "test-image-digest:latest",
		"test-image-1:latest", "test-image-2:latest", "test-image-3:latest"} {
		out = append(out, small("", criRegistry+name))
	}
	return out
}

// criBusyboxFiles put busybox's programs before Debian's, its shell included: top and sh
// behave as the tests' commands expect only there.
func criBusyboxFiles() []file {
	var fs []file
	for _, a := range []string{"ash", "awk", "brctl", "cat", "chmod", "cp", "dd", "echo", "env", "false", "grep", "head", "hostname", "id", "mkdir",
		"mount", "netstat", "nslookup", "pidof", "ping", "ps", "rm", "sed", "seq", "sh", "sleep", "stat", "sync", "tail", "test", "top", "touch", "true", "umount", "wc"} {
		fs = append(fs, file{path: "usr/local/bin/" + a, link: "/usr/bin/busybox"})
	}
	// ls is Debian's: a test masks the file, and all of busybox would be gone with it.
	return append(fs, file{path: "usr/bin/sh", link: "busybox"})
}

func criNginxConf(port string) string {
	return fmt.Sprintf(`worker_processes 1;
error_log stderr;
pid /run/nginx.pid;
events { worker_connections 256; }
http {
  access_log /dev/stdout;
  client_body_temp_path /tmp/nginx-body;
  proxy_temp_path /tmp/nginx-proxy;
  server {
    listen %s;
    root /usr/share/nginx/html;
  }
}
`, port)
}

// staticBusybox is the path of Debian's busybox that needs no libraries, kept in the cache.
func staticBusybox(cache string) (string, error) {
	path := filepath.Join(cache, "busybox-static")
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	dir := filepath.Join(cache, "debs-busybox-static")
	debs, err := download(dir, []string{"busybox-static"})
	if err != nil {
		return "", err
	}
	for _, deb := range debs {
		if out, err := exec.Command("dpkg-deb", "-x", deb, filepath.Join(dir, "root")).CombinedOutput(); err != nil {
			return "", fmt.Errorf("unpack %s: %w\n%s", filepath.Base(deb), err, out)
		}
	}
	if err := copyFile(filepath.Join(dir, "root", "bin", "busybox"), path+".new"); err != nil {
		return "", fmt.Errorf("take busybox from its package: %w", err)
	}
	return path, os.Rename(path+".new", path)
}

package main

import "path/filepath"

// image is one image and the names that tests ask for it by
// (k8s.io/kubernetes/test/utils/image/manifest.go of the version under test).
type image struct {
	names           []string
	scratch         bool // without the Debian base
	files           []file
	entrypoint, cmd []string
	user            string
	stopSignal      string
}

const registry = "registry.k8s.io/e2e-test-images/"

// images is the catalog; programs is the directory of the built commands that images hold.
func images(programs string, localhost pair) []image {
	program := func(name string) string { return filepath.Join(programs, name) }
	agnhostFiles := []file{
		{path: "agnhost", from: program("agnhost"), mode: 0o755},
		{path: "agnhost-2", link: "/agnhost"},
		{path: "uploads", dir: true, mode: 0o777},
		{path: "localhost.crt", text: localhost.cert}, {path: "localhost.key", text: localhost.key},
	}
	agnhostImage := image{
		names: []string{registry + "agnhost:2.66.1", registry + "agnhost:2.55"}, files: agnhostFiles,
		entrypoint: []string{"/agnhost"}, cmd: []string{"pause"},
	}
	nginx := func(version string) image {
		return image{
			names: []string{registry + "nginx:" + version},
			files: []file{
				{path: "etc/nginx/nginx.conf", text: nginxConf},
				{path: "usr/share/nginx/html/index.html", text: "<html><head><title>Welcome to nginx!</title></head><body><h1>Welcome to nginx!</h1></body></html>\n"},
				{path: "etc/nginx/stand-in-version", text: version + "\n"},
				{path: "var/log/nginx", dir: true, mode: 0o755}, {path: "var/lib/nginx", dir: true, mode: 0o755},
			},
			entrypoint: []string{"nginx", "-g", "daemon off;"}, stopSignal: "SIGQUIT",
		}
	}
	// The pictures are not looked at; their names in data.json are.
	picture := func(name string, more ...file) image {
		return image{
			names: []string{registry + name + ":1.8"},
			files: append(append(more, agnhostFiles...), file{path: name + ".jpg", text: "a stand-in for a picture\n"},
				file{path: "data.json", text: "{\"image\": \"" + name + ".jpg\"}\n"}),
			entrypoint: []string{"/agnhost"}, cmd: []string{"test-webserver"},
		}
	}
	return []image{
		agnhostImage,
		{names: []string{registry + "busybox:1.37.0-2"}, files: busyboxFiles(), cmd: []string{"sh"}},
		{names: []string{registry + "glibc-dns-testing:2.1.1"}, files: agnhostFiles, cmd: []string{"/bin/sh"}},
		{names: []string{"registry.k8s.io/pause:3.10.2"}, scratch: true, files: []file{{path: "pause", from: program("pause"), mode: 0o755}},
			entrypoint: []string{"/pause"}, user: "65535:65535"},
		nginx("1.27.0-2"),
		nginx("1.28.0-2"),
		// A test looks for the name of the distribution that the real one is made of.
		picture("kitten", file{path: "etc/os-release", text: "PRETTY_NAME=\"stand-in (Debian packages) for an image of Alpine Linux\"\n"}),
		picture("nautilus"),
		{names: []string{registry + "nonewprivs:1.4"}, files: []file{{path: "usr/local/bin/nnp", from: program("nnp"), mode: 0o6755}}, cmd: []string{"nnp"}},
		{names: []string{registry + "nonroot:1.5"}, user: "1234"},
		{names: []string{registry + "perl:5.26"}},
		{names: []string{registry + "sample-apiserver:1.29.2"}, files: []file{{path: "sample-apiserver", from: program("sample-apiserver"), mode: 0o755}},
			entrypoint: []string{"/sample-apiserver"}},
		{names: []string{"registry.k8s.io/etcd:3.7.0-0"}, files: []file{
			{path: "usr/local/bin/etcd", from: program("etcd"), mode: 0o755},
			{path: "usr/local/bin/etcdctl", from: program("etcdctl"), mode: 0o755},
			{path: "var/lib/etcd", dir: true, mode: 0o700},
		}},
		{names: []string{registry + "resource-consumer:1.14"}, files: []file{
			{path: "consumer", from: program("resource-consumer"), mode: 0o755},
			{path: "consume-cpu/consume-cpu", from: program("consume-cpu"), mode: 0o755}, // where consumer looks
		}, entrypoint: []string{"/consumer"}},
	}
}

// busyboxFiles put busybox's applets before Debian's programs. sh by its name alone is
// bash: other shells drop environment names such as data-1, which a Secrets test uses.
// /bin/sh is busybox's own, whose messages a test of read-only containers compares.
func busyboxFiles() []file {
	fs := []file{
		{path: "usr/local/bin/sh", link: "/bin/bash"}, {path: "usr/bin/sh", link: "busybox"},
		{path: "usr/bin/sysctl", link: "busybox"},
	}
	for _, a := range []string{"cat", "chmod", "cp", "date", "dd", "df", "echo", "env", "false", "grep", "head", "hexdump", "hostname", "id",
		"kill", "ls", "mkdir", "mktemp", "mount", "mv", "nc", "netstat", "nslookup", "ping", "printenv", "ps", "pwd", "rm", "rmdir", "sed",
		"seq", "sleep", "sort", "stat", "sync", "tail", "tar", "tee", "test", "time", "timeout", "touch", "tr", "true", "umount", "uname",
		"vi", "wc", "wget", "whoami", "xargs", "yes"} {
		fs = append(fs, file{path: "usr/local/bin/" + a, link: "/usr/bin/busybox"})
	}
	return fs
}

const nginxConf = `worker_processes 1;
error_log stderr;
pid /run/nginx.pid;
events { worker_connections 256; }
http {
  access_log /dev/stdout;
  client_body_temp_path /tmp/nginx-body;
  proxy_temp_path /tmp/nginx-proxy;
  server {
    listen 80;
    root /usr/share/nginx/html;
  }
}
`

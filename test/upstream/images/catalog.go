package main

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

// programs are the built commands that images hold.
type programs struct{ agnhost, pause, nnp string }

func images(p programs) ([]image, error) {
	cert, key, err := localhostPair()
	if err != nil {
		return nil, err
	}
	agnhostFiles := []file{
		{path: "agnhost", from: p.agnhost, mode: 0o755},
		{path: "agnhost-2", link: "/agnhost"},
		{path: "uploads", dir: true, mode: 0o777},
		{path: "localhost.crt", text: cert}, {path: "localhost.key", text: key},
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
		{names: []string{"registry.k8s.io/pause:3.10.2"}, scratch: true, files: []file{{path: "pause", from: p.pause, mode: 0o755}},
			entrypoint: []string{"/pause"}, user: "65535:65535"},
		nginx("1.27.0-2"),
		nginx("1.28.0-2"),
		// A test looks for the name of the distribution that the real one is made of.
		picture("kitten", file{path: "etc/os-release", text: "PRETTY_NAME=\"stand-in (Debian packages) for an image of Alpine Linux\"\n"}),
		picture("nautilus"),
		{names: []string{registry + "nonewprivs:1.4"}, files: []file{{path: "usr/local/bin/nnp", from: p.nnp, mode: 0o6755}}, cmd: []string{"nnp"}},
		{names: []string{registry + "nonroot:1.5"}, user: "1234"},
		{names: []string{registry + "perl:5.26"}},
	}, nil
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

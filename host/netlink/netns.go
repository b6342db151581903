package netlink

import (
	"os"

	"github.com/vishvananda/netns"
)

func nsHandle(f *os.File) netns.NsHandle { return netns.NsHandle(f.Fd()) }

package etcd

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// dropMap gives the pages of the database's memory map back to the page cache: bbolt
// maps the file with MAP_POPULATE, and compaction walks it, so that all of it counts as
// this process's memory although little of it is read again.
//
// The mapping stays where it is as long as the database does not outgrow the size it was
// mapped with, which the quota prevents.
func dropMap(dataDir string) error {
	path, err := filepath.EvalSymlinks(dbPath(dataDir))
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return fmt.Errorf("find the database: %w", err)
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("read the memory map: %w", err)
	}
	defer maps.Close()
	for s := bufio.NewScanner(maps); s.Scan(); {
		line := s.Text()
		if !strings.HasSuffix(line, " "+path) {
			continue
		}
		span, _, _ := strings.Cut(line, " ")
		from, to, _ := strings.Cut(span, "-")
		start, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err1 != nil || err2 != nil {
			return fmt.Errorf("read the memory map: line %q", line)
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(start), uintptr(end-start), unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return nil
}

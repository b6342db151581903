# The programs that bin/skiff carries, see containers/oci/bin/README.
# Included by the root Makefile; stands alone as well:
#   make -f containers/build.mk embedded

EMBED       := containers/oci/bin
MONITOR_C   := $(wildcard containers/monitor/src/*.c)
MONITOR_H   := $(wildcard containers/monitor/src/*.h)
LAUNCHER_GO := $(wildcard containers/launcher/*.go)
HELLO_GO    := $(wildcard cmd/hello/*.go)
# Every warning that found something once, and hardening that costs nothing here.
MONITOR_CFLAGS := -std=c11 -D_GNU_SOURCE -Os -Wall -Wextra -Werror -Wshadow -Wconversion -fstack-protector-strong \
	-ffunction-sections -fdata-sections -fno-asynchronous-unwind-tables
LAUNCHER_TAGS := seccomp,netgo,osusergo,runc_nocriu

# Packs what was built; the sum goes first, so that it never names an older program.
define pack
gzip -9 -n -c $(@:.gz=.tmp) > $@.new && rm $(@:.gz=.tmp)
sha256sum < $@.new | cut -c1-16 > $(@:.gz=.sum) && mv $@.new $@
endef

.PHONY: embedded
embedded: $(EMBED)/launcher.gz $(EMBED)/monitor.gz $(EMBED)/hello.gz

# libcontainer enters namespaces from C; libseccomp compiles the filters.
$(EMBED)/launcher.gz: $(LAUNCHER_GO) go.mod go.sum
	@test -e /usr/include/seccomp.h || { echo "libseccomp's headers are missing: apt-get install libseccomp-dev" >&2; exit 1; }
	CGO_ENABLED=1 go build -trimpath -buildvcs=false -tags $(LAUNCHER_TAGS) -ldflags '-s -w -extldflags "-static"' -o $(@:.gz=.tmp) ./containers/launcher
	$(pack)

$(EMBED)/monitor.gz: $(MONITOR_C) $(MONITOR_H)
	$(CC) $(MONITOR_CFLAGS) -static -s -Wl,--gc-sections -o $(@:.gz=.tmp) $(MONITOR_C)
	$(pack)

$(EMBED)/hello.gz: $(HELLO_GO) go.mod
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w' -o $(@:.gz=.tmp) ./cmd/hello
	$(pack)

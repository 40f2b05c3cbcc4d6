# SPDX-License-Identifier: MIT OR Apache-2.0
# Fetches Debian's packaged kernels into a cache; sourced by vm/run, which provides say, cannot and $busybox.
# shellcheck shell=bash disable=SC2154

# Loaded in the guest in this order, each after the modules that it depends on.
readonly KERNEL_MODULES='null_blk brd loop dm-mod dm-flakey dm-log-writes crc32c_generic ext4 fuse'

kernel_series() { echo 6.1 7.2; }

# Prints the Debian suite that packages a series, fails for an unknown one.
kernel_suite() {
    case $1 in
        6.1) echo bookworm ;;
        7.2) echo trixie-backports ;;
        *) return 1 ;;
    esac
}

kernel_known() { kernel_suite "$1" >/dev/null; }

# Sets kernel_dir to a folder with vmlinuz, release and modules/, fetched first if need be.
kernel_provide() {
    local series=$1 cache=$2 scratch=$3 lock_fd
    mkdir -p "$cache" 2>/dev/null || true
    [[ -d $cache && -w $cache ]] || cannot "$cache: cannot write there; give --cache DIR"
    kernel_dir=$(realpath "$cache")/kernel-$series
    exec {lock_fd}>"$kernel_dir.lock"
    flock "$lock_fd"
    if ! kernel_intact; then
        kernel_fetch "$series" "$scratch/fetch"
        rm -rf "$kernel_dir"
        mv "$scratch/fetch/kernel" "$kernel_dir"
    fi
    exec {lock_fd}>&-
}

kernel_intact() {
    [[ -f $kernel_dir/sums ]] || return 1
    [[ $(cat "$kernel_dir/wanted" 2>/dev/null) == "$KERNEL_MODULES" ]] || return 1
    (cd "$kernel_dir" && sha256sum --quiet --check sums) >/dev/null 2>&1
}

# Prints the Debian mirror of this machine's apt.
kernel_mirror() {
    local release
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
    # shellcheck disable=SC2016  # apt expands the fields
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
        awk -v release="$release" '
            $3 == "main" && $2 == release { print $1; found = 1; exit }
            $3 == "main" && $2 ~ /^(stable|testing|unstable|sid)$/ && !other { other = $1 }
            END { if (!found && other) print other }'
}

kernel_fetch() {
    local series=$1 work=$2 suite mirror keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    local -a apt packages
    suite=$(kernel_suite "$series")
    command -v apt-get >/dev/null || cannot "no apt-get: kernels come as Debian packages, run this on Debian"
    mirror=$(kernel_mirror)
    [[ -n $mirror ]] || cannot "apt knows no Debian mirror: add one to /etc/apt/sources.list.d"
    [[ -f $keyring ]] || cannot "no $keyring: apt install debian-archive-keyring"
    say "fetching kernel $series (once, into $kernel_dir)"

    # A private apt state: the machine's own lists, pins and installed packages play no part.
    mkdir -p "$work"/{lists/partial,cache/archives/partial,packages,tree,kernel/modules}
    : >"$work/installed"
    echo "deb [arch=amd64 signed-by=$keyring] $mirror $suite main" >"$work/source"
    apt=(-qq -o "Dir::Etc::SourceList=$work/source" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null
        -o "Dir::State::Lists=$work/lists" -o "Dir::State::status=$work/installed"
        -o "Dir::Cache=$work/cache" -o APT::Architecture=amd64 -o APT::Architectures::=amd64
        -o Acquire::Languages=none -o Acquire::Retries=2 -o APT::Update::Error-Mode=any)
    [[ $EUID != 0 ]] || apt+=(-o APT::Sandbox::User=root)
    apt-get "${apt[@]}" update >"$work/log" 2>&1 ||
        cannot "cannot fetch the package list of $suite from apt's mirror (network?): $(kernel_log_end "$work/log")"
    mapfile -t packages < <(kernel_packages "$series" "${apt[@]}")
    ((${#packages[@]})) || cannot "$suite on apt's mirror packages no kernel $series any more"
    (cd "$work/packages" && apt-get "${apt[@]}" download "${packages[@]}") >"$work/log" 2>&1 ||
        cannot "cannot download kernel $series (network?): $(kernel_log_end "$work/log")"
    kernel_unpack "$work"
}

kernel_log_end() { grep -E '^[EW]:' "$1" | tail -n 1 || true; }

# Prints the packages that hold the newest image of a series: one, or since 7.x binary and modules apart.
kernel_packages() {
    local series=$1 image version
    shift
    image=$(apt-cache "$@" search --names-only "^linux-image-${series/./\\.}\..*-cloud-amd64\$" |
        cut -d' ' -f1 | sort -V | tail -n 1)
    [[ -n $image ]] || return 0
    version=${image#linux-image-}
    apt-cache "$@" pkgnames | grep -Fx -e "linux-image-$version" -e "linux-binary-$version" -e "linux-modules-$version"
}

# Keeps the kernel image and the wanted modules, decompressed, with checksums.
kernel_unpack() {
    local work=$1 deb image module
    local -A placed=()
    for deb in "$work"/packages/*.deb; do
        dpkg-deb -x "$deb" "$work/tree" || cannot "$deb: cannot be unpacked; is the disk full?"
    done
    image=$(find "$work/tree" -name 'vmlinuz*' -type f -print -quit)
    [[ -n $image ]] || cannot "no kernel image in ${deb##*/}"
    cp "$image" "$work/kernel/vmlinuz"
    basename "$(dirname "$(find "$work/tree" -type d -path '*/modules/*/kernel' -print -quit)")" \
        >"$work/kernel/release"
    : >"$work/kernel/modules/order"
    for module in $KERNEL_MODULES; do kernel_place_module "$work" "$module"; done
    echo "$KERNEL_MODULES" >"$work/kernel/wanted"
    (cd "$work/kernel" && find . -type f ! -name sums -exec sha256sum {} +) >"$work/sums"
    mv "$work/sums" "$work/kernel/sums"
}

# Copies a module after those that it depends on, as its own .modinfo names them.
kernel_place_module() {
    local work=$1 module=$2 file target dependency
    module=${module//_/-}
    [[ -z ${placed[$module]:-} ]] || return 0
    placed[$module]=1
    file=$(find "$work/tree" \( -name "$module.ko*" -o -name "${module//-/_}.ko*" \) -print -quit)
    # Built into this kernel, or not packaged: the guest does without, its tests skip.
    [[ -n $file ]] || return 0
    target=$work/kernel/modules/$module.ko
    case $file in
        *.ko) cp "$file" "$target" ;;
        *.xz) "$busybox" xz -dc "$file" >"$target" ;;
        *.zst) zstd -qdc "$file" >"$target" || cannot "cannot decompress ${file##*/}: apt install zstd" ;;
        *) cannot "${file##*/}: compressed in an unknown way" ;;
    esac
    for dependency in $(tr '\0' '\n' <"$target" | sed -n 's/^depends=//p' | tr ',' ' '); do
        kernel_place_module "$work" "$dependency"
    done
    echo "$module" >>"$work/kernel/modules/order"
}

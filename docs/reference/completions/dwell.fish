# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_dwell_global_optspecs
    string join \n color= q/quiet h/help V/version
end

function __fish_dwell_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_dwell_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_dwell_using_subcommand
    set -l cmd (__fish_dwell_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c dwell -n "__fish_dwell_needs_command" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_needs_command" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_needs_command" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_needs_command" -s V -l version -d 'Print version'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "run" -d 'Run a command under Dwell, which decides how its file requests wait'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "advise" -d 'Say where a program\'s storage time goes, and what would help'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "compare" -d 'Compare a command with and without Dwell'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "top" -d 'Watch your processes under Dwell: device, policy, requests, latency, spinning'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "explain" -d 'Show how a request would be decided: each check in order, with its values'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "doctor" -d 'Check what works on this machine, and how to make the rest work'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "probe" -d 'Measure a device and store the result as its profile'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "bench" -d 'Measure'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "serve" -d 'Serve a directory, with user-space access to its files'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "nfs" -d 'Files on NFS servers: copy, list, show, remove, mount'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "ctl" -d 'Change the policy of a running process, or switch Dwell off in it, at once'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "off" -d 'Switch Dwell off: for all processes as root, else for your own'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "on" -d 'Switch Dwell on again after dwell off'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "profile" -d 'List, show or remove profiles'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "lab" -d 'Simulate waits, trace programs and measure the figures of the papers'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "pages" -d 'Writes manual pages and completions'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "crunch" -d 'One process of the load beside a measurement'
complete -c dwell -n "__fish_dwell_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dwell -n "__fish_dwell_using_subcommand run" -l policy -d 'Use this wait policy on every device' -r
complete -c dwell -n "__fish_dwell_using_subcommand run" -l steer -d 'Steer only a part: "5% of requests", "5% of processes" or "5% of hosts"' -r
complete -c dwell -n "__fish_dwell_using_subcommand run" -l pager -d 'Bring in mapped files with Dwell\'s pager: a path\'s pattern; files that nobody may write' -r
complete -c dwell -n "__fish_dwell_using_subcommand run" -l pager-memory -d 'Memory for the pages of each file of --pager' -r
complete -c dwell -n "__fish_dwell_using_subcommand run" -l stats -d 'Write the statistics of the run to a file, as JSON' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand run" -l config -d 'Read settings that override those of the machine and the user' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand run" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand run" -l shadow -d 'Decide and record, but change nothing'
complete -c dwell -n "__fish_dwell_using_subcommand run" -l channels -d 'Use channels for files under a mount of dwell serve'
complete -c dwell -n "__fish_dwell_using_subcommand run" -s v -l verbose -d 'Print what was decided and why when the command ends'
complete -c dwell -n "__fish_dwell_using_subcommand run" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dwell -n "__fish_dwell_using_subcommand advise" -l pid -d 'Follow a running process and those that it starts' -r
complete -c dwell -n "__fish_dwell_using_subcommand advise" -l from -d 'Judge a recording: fio\'s JSON, or the text of blkparse' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand advise" -l seconds -d 'How long to look; a command is followed to its end' -r
complete -c dwell -n "__fish_dwell_using_subcommand advise" -l rounds -d 'Rounds of --confirm' -r
complete -c dwell -n "__fish_dwell_using_subcommand advise" -s o -l out -d 'Directory for report.html and result.json' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand advise" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand advise" -l all -d 'Follow the whole machine'
complete -c dwell -n "__fish_dwell_using_subcommand advise" -l confirm -d 'Also measure the gain: run the command untouched and under dwell run in turn'
complete -c dwell -n "__fish_dwell_using_subcommand advise" -l json -d 'Print the result as JSON to standard output, in place of the table'
complete -c dwell -n "__fish_dwell_using_subcommand advise" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand advise" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dwell -n "__fish_dwell_using_subcommand compare" -l policies -d 'Policies to compare with the untouched command' -r
complete -c dwell -n "__fish_dwell_using_subcommand compare" -l rounds -d 'Interleaved rounds; fewer than six cannot tell anything apart' -r
complete -c dwell -n "__fish_dwell_using_subcommand compare" -l warmup -d 'Rounds before them that are not kept' -r
complete -c dwell -n "__fish_dwell_using_subcommand compare" -l setup -d 'Shell command before each run, untimed' -r
complete -c dwell -n "__fish_dwell_using_subcommand compare" -l check -d 'Shell command after each run, untimed; its output is compared in place of the command\'s' -r
complete -c dwell -n "__fish_dwell_using_subcommand compare" -s o -l out -d 'Directory for report.html, result.json and result.csv' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand compare" -l wrapper-word -d 'Words that put a command under {policy} and write {stats}, in place of `dwell run`' -r
complete -c dwell -n "__fish_dwell_using_subcommand compare" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand compare" -l control -d 'Also run the untouched command twice per round, to show the noise'
complete -c dwell -n "__fish_dwell_using_subcommand compare" -l ignore-failure -d 'Continue when a run fails'
complete -c dwell -n "__fish_dwell_using_subcommand compare" -l json -d 'Print the result as JSON'
complete -c dwell -n "__fish_dwell_using_subcommand compare" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand compare" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand top" -l interval -d 'Seconds between two readings' -r
complete -c dwell -n "__fish_dwell_using_subcommand top" -l openmetrics -d 'Write OpenMetrics text to FILE at each interval, for node_exporter\'s textfile collector' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand top" -l listen -d 'Serve OpenMetrics text at GET /metrics: ADDRESS:PORT or unix:PATH. Everybody who reaches the address can read command lines and counts' -r
complete -c dwell -n "__fish_dwell_using_subcommand top" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand top" -l json -d 'Print JSON once: {interval_s, processes, unreadable, off}'
complete -c dwell -n "__fish_dwell_using_subcommand top" -l once -d 'Show the table, or write the metrics, once'
complete -c dwell -n "__fish_dwell_using_subcommand top" -l waits -d 'Also show where the storage time of every process goes; needs root'
complete -c dwell -n "__fish_dwell_using_subcommand top" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dwell -n "__fish_dwell_using_subcommand explain" -l size -d 'Size of the request' -r
complete -c dwell -n "__fish_dwell_using_subcommand explain" -l backlog -d 'Bytes in flight ahead of it on the device' -r
complete -c dwell -n "__fish_dwell_using_subcommand explain" -l requests -d 'Requests in flight ahead of it [default: 1 if there is a backlog]' -r
complete -c dwell -n "__fish_dwell_using_subcommand explain" -l load -d 'CPU use by others, 0–1 or percent [default: as measured now]' -r
complete -c dwell -n "__fish_dwell_using_subcommand explain" -l total -d 'CPU use by everybody, compared with the threshold instead of that by others' -r
complete -c dwell -n "__fish_dwell_using_subcommand explain" -l threshold -d 'CPU threshold [default: the monitor\'s]' -r
complete -c dwell -n "__fish_dwell_using_subcommand explain" -l queue-limit -d 'Requests in flight up to which smartcon spins' -r
complete -c dwell -n "__fish_dwell_using_subcommand explain" -l policy -d 'Wait policy [default: the settings\']' -r
complete -c dwell -n "__fish_dwell_using_subcommand explain" -l depth -d 'Explain one of a pipeline\'s requests, with so many in flight' -r
complete -c dwell -n "__fish_dwell_using_subcommand explain" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand explain" -l write -d 'Explain a write'
complete -c dwell -n "__fish_dwell_using_subcommand explain" -l sync -d 'Explain a sync'
complete -c dwell -n "__fish_dwell_using_subcommand explain" -l buffered -d 'Explain a request through the page cache, as most programs make them'
complete -c dwell -n "__fish_dwell_using_subcommand explain" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand explain" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand doctor" -l config -d 'Read settings that override those of the machine and the user' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand doctor" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand doctor" -l json -d 'Print JSON: {capabilities, devices, settings, summary, profiles, host_page, off, counters, lacking}'
complete -c dwell -n "__fish_dwell_using_subcommand doctor" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand probe" -l scratch -d 'Measure writes too, on a new file of 64 MiB that is removed afterwards' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand probe" -l largest-threshold -d 'Largest size threshold [default: the device\'s setting, or 64k]' -r
complete -c dwell -n "__fish_dwell_using_subcommand probe" -l svg -d 'Draw the curves into an SVG file' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand probe" -l config -d 'Read settings that override those of the machine and the user' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand probe" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand probe" -l quick -d 'Measure for a few seconds only'
complete -c dwell -n "__fish_dwell_using_subcommand probe" -l json -d 'Print JSON: a list of {path, saved, profile}'
complete -c dwell -n "__fish_dwell_using_subcommand probe" -l on-add -d 'Probe only if the settings ask for it (probe.on_add), and skip devices that are excluded or have a profile'
complete -c dwell -n "__fish_dwell_using_subcommand probe" -l no-save -d 'Store no profile'
complete -c dwell -n "__fish_dwell_using_subcommand probe" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand probe" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and not __fish_seen_subcommand_from io workload nfs pager bundle help" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand bench; and not __fish_seen_subcommand_from io workload nfs pager bundle help" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and not __fish_seen_subcommand_from io workload nfs pager bundle help" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and not __fish_seen_subcommand_from io workload nfs pager bundle help" -f -a "io" -d 'Wait policies on storage devices: throughput, latency, switches and CPU, in interleaved rounds'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and not __fish_seen_subcommand_from io workload nfs pager bundle help" -f -a "workload" -d 'Wait policies under workloads from data files: operations per second, latency, switches, CPU'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and not __fish_seen_subcommand_from io workload nfs pager bundle help" -f -a "nfs" -d 'A file on an NFS server: one thread with many requests outstanding against blocking threads'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and not __fish_seen_subcommand_from io workload nfs pager bundle help" -f -a "pager" -d 'A file as memory larger than a process may have: the pager against mmap, under one memory limit'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and not __fish_seen_subcommand_from io workload nfs pager bundle help" -f -a "bundle" -d 'Results and the machine\'s description in one anonymised file, to attach to an issue'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and not __fish_seen_subcommand_from io workload nfs pager bundle help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l policies -d 'Policies to compare; also smartcon:cpu-threshold=0.5+queue-limit=1+signal=total (all policies take :pause=off), hand-written loops (pread, raw-wait, raw-cq-peek, raw-get-events, raw-taskrun-flag, raw-iopoll) and other runtimes (peer:glommio, ...: dwell-peers --list)' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l baseline -d 'The policy that the others are held against, block if not said' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l sizes -d 'Request sizes' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l pattern -d 'Order of the offsets' -r -f -a "rand\t''
seq\t''"
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l load -d 'What else it starts: nothing; CPU stressors; four I/O programs on the same device; nine arithmetic processes; four slow readers of a file in the working directory; bystanders whose speed is measured' -r -f -a "idle\t''
cpu\t''
io\t''
arithmetic\t''
readers\t''
bystander\t''"
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l stressors -d 'CPU stressors of the cpu load, 10 if not said' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l bystanders -d 'Bystanders of the bystander load, 1 if not said' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l scheduler -d 'I/O schedulers to set on the device while it is measured (needs root); without any, the one it has' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l depth -d 'Requests in flight' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l rounds -d 'Interleaved rounds; where something else ran meanwhile, up to twice as many are measured' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l batch-ms -d 'Milliseconds for each policy in each round: 60 if not said, 1000 where --load names a load' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l scenario -d 'Phases of load and request size, of which no contender is told, in place of all combinations: `mixed`, or a file like it (docs/reference/bench.md)' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l peers-program -d 'The program with the other runtimes. Without it: dwell-peers, as `make peers` builds it' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -s o -l out -d 'Directory for report.html, result.json and result.csv' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l samples -d 'File for the latency of every request, .csv or .parquet; put it on another disk than the measured one' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l write -d 'Also measure writes: overwrites what PATH holds'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l json -d 'Print the result as JSON in place of the table'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l counters -d 'Also read the CPU\'s event counters: cycles, instructions, cache and TLB misses'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -l hasty-probe -d 'Hardly at all, so that tests of a bench need not wait for it: profiles say little then'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from io" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from workload" -l on -d 'Where the files go: loop, zram, disk, or a directory' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from workload" -l size -d 'Bytes of a device made for it, or that files in a directory may take' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from workload" -l set -d 'Gives a parameter of the workloads another value, or several: read_bias=0,10' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from workload" -l policies -d 'Policies to compare; also pread, for plain calls' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from workload" -l baseline -d 'The policy that the others are held against' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from workload" -l rounds -d 'Interleaved rounds' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from workload" -l batch-ms -d 'Milliseconds for each policy in each round' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from workload" -s o -l out -d 'Directory for report.html, result.json and result.csv' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from workload" -l print -d 'Print a shipped workload, to copy and edit' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from workload" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from workload" -l json -d 'Print the result as JSON in place of the table'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from workload" -l list -d 'List the shipped workloads'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from workload" -l hasty-probe -d 'Hardly at all, so that tests of a bench need not wait for it: profiles say little then'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from workload" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from workload" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from nfs" -l windows -d 'Requests outstanding; threads of the baseline' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from nfs" -l contenders -d 'Contenders: biod (blocking threads, a connection each), biod-shared (on one together), single (one thread), single-spread (with as many connections), bare (its calls alone), peer:NAME (another client)' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from nfs" -l peers-program -d 'The program that has other clients, as `make peers` builds it' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from nfs" -l size -d 'Of one request' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from nfs" -l bytes -d 'Of the file' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from nfs" -l proto -d 'Transport' -r -f -a "tcp\t''
udp\t''"
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from nfs" -l connections -d 'Connections that the one thread\'s requests are spread over' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from nfs" -l rounds -d 'Interleaved rounds' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from nfs" -s o -l out -d 'Directory for report.html, result.json and result.csv' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from nfs" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from nfs" -l no-auto -d 'Leave out the window that is found by itself'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from nfs" -l read -d 'Read instead of writing'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from nfs" -l json -d 'Print the result as JSON in place of the table'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from nfs" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from nfs" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from pager" -l on -d 'Devices to make files of random bytes on, each with ext4: a loop device over memory, compressed memory, the disk of the working directory' -r -f -a "loop\t''
zram\t''
disk\t''"
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from pager" -l bytes -d 'Length of those files' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from pager" -l ways -d 'Contenders. The kernel\'s mapping: mmap; with advice for all of it: mmap-random, mmap-sequential, mmap-willneed, mmap-populate, mmap-huge; with the program\'s hints by MADV_WILLNEED: mmap-hints, mmap-random-hints. Regions: region, region-hints, region-sequential, region-random, region-random-hints; with one wait mode: region-spin-ahead, and without reading ahead region-spin, region-spin-hints, region-block; with a thread that handles faults: region-thread. Others: swap (anonymous memory, swapped to zram), umap and umap-64k (UMap, built by `make peers`), device and device-block (reads one by one, spun and blocked for)' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from pager" -l baseline -d 'The contender that the others are held against' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from pager" -l work -d 'Work to do: visits to pages in an order, or walks over a graph, which the files then are' -r -f -a "random\t''
sequential\t''
strided\t''
page-rank\t''
random-walk\t''
communities\t''
shortest-paths\t''
breadth-first\t''
sort\t''"
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from pager" -l stride -d 'Distance of strided visits, in pages' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from pager" -l scale -d 'Vertices of graphs, as a power of two' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from pager" -l memory-ratio -d 'How much of a file may be in memory: its length divided by this, but 4 MiB at least' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from pager" -l max-time -d 'Longest time of visits in each round, as 300ms or 2s' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from pager" -l rounds -d 'Interleaved rounds' -r
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from pager" -s o -l out -d 'Directory for report.html, result.json and result.csv' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from pager" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from pager" -l json -d 'Print the result as JSON in place of the table'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from pager" -l hasty-probe -d 'Hardly at all, so that tests of a bench need not wait for it: profiles say little then'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from pager" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from pager" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from bundle" -s o -l out -d 'The file to write' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from bundle" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from bundle" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from bundle" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "io" -d 'Wait policies on storage devices: throughput, latency, switches and CPU, in interleaved rounds'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "workload" -d 'Wait policies under workloads from data files: operations per second, latency, switches, CPU'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "nfs" -d 'A file on an NFS server: one thread with many requests outstanding against blocking threads'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "pager" -d 'A file as memory larger than a process may have: the pager against mmap, under one memory limit'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "bundle" -d 'Results and the machine\'s description in one anonymised file, to attach to an issue'
complete -c dwell -n "__fish_dwell_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and not __fish_seen_subcommand_from start status stop help" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand serve; and not __fish_seen_subcommand_from start status stop help" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and not __fish_seen_subcommand_from start status stop help" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and not __fish_seen_subcommand_from start status stop help" -f -a "start" -d 'Start a daemon that serves BACKING at MOUNT, also where a killed one did'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and not __fish_seen_subcommand_from start status stop help" -f -a "status" -d 'Show your daemons, their channels, files and requests'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and not __fish_seen_subcommand_from start status stop help" -f -a "stop" -d 'Stop serving MOUNT if nobody uses it; clear away what a killed daemon left'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and not __fish_seen_subcommand_from start status stop help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from start" -l threads -d 'Threads for requests from the kernel; channels have their own' -r
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from start" -l policy -d 'Policy of the threads that serve channels [default: the settings\']' -r
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from start" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from start" -l private -d 'Hide BACKING from all other processes while it is served'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from start" -l foreground -d 'Stay in the foreground; Ctrl-C and SIGTERM stop it'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from start" -l no-passthrough -d 'Let the daemon serve every read and write, even if the kernel could'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from start" -l detached -d 'Started by `serve start`, which waits for a word on standard output'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from start" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from start" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from status" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from status" -l json -d 'Print JSON: a list of {state, mount, backing, pid, facts}'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from status" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from status" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from stop" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from stop" -l force -d 'Stop even if programs use it; they get errors'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from stop" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from stop" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from help" -f -a "start" -d 'Start a daemon that serves BACKING at MOUNT, also where a killed one did'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from help" -f -a "status" -d 'Show your daemons, their channels, files and requests'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from help" -f -a "stop" -d 'Stop serving MOUNT if nobody uses it; clear away what a killed daemon left'
complete -c dwell -n "__fish_dwell_using_subcommand serve; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and not __fish_seen_subcommand_from cp ls stat cat rm mkdir mount unmount help" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and not __fish_seen_subcommand_from cp ls stat cat rm mkdir mount unmount help" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and not __fish_seen_subcommand_from cp ls stat cat rm mkdir mount unmount help" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and not __fish_seen_subcommand_from cp ls stat cat rm mkdir mount unmount help" -f -a "cp" -d 'Copy files or trees, from or to a server, or between servers'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and not __fish_seen_subcommand_from cp ls stat cat rm mkdir mount unmount help" -f -a "ls" -d 'List a directory; of an address without a path, the exports'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and not __fish_seen_subcommand_from cp ls stat cat rm mkdir mount unmount help" -f -a "stat" -d 'Show what is known of a file, and of the space around it'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and not __fish_seen_subcommand_from cp ls stat cat rm mkdir mount unmount help" -f -a "cat" -d 'Write a file to standard output'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and not __fish_seen_subcommand_from cp ls stat cat rm mkdir mount unmount help" -f -a "rm" -d 'Remove files'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and not __fish_seen_subcommand_from cp ls stat cat rm mkdir mount unmount help" -f -a "mkdir" -d 'Make a directory'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and not __fish_seen_subcommand_from cp ls stat cat rm mkdir mount unmount help" -f -a "mount" -d 'Mount an export at a directory, for any program of yours'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and not __fish_seen_subcommand_from cp ls stat cat rm mkdir mount unmount help" -f -a "unmount" -d 'Unmount what `dwell nfs mount` mounted'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and not __fish_seen_subcommand_from cp ls stat cat rm mkdir mount unmount help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from cp" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from cp" -s r -l recursive -d 'Directories too, with all that is in them'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from cp" -l resume -d 'Go on where an earlier copy of an unchanged source broke off; leave out files of the same length and time (keeps times)'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from cp" -l verify -d 'Read back what was written and compare checksums'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from cp" -s p -l times -d 'Keep times, owners, hard links, and set-user-id, set-group-id and sticky bits'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from cp" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from cp" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from ls" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from ls" -l json -d 'Print JSON: a list of files, or of the names of exports'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from ls" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from ls" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from stat" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from stat" -l json -d 'Print JSON: {file, may, space}'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from stat" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from stat" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from cat" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from cat" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from cat" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from rm" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from rm" -s r -l recursive -d 'Directories too, with all that is in them'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from rm" -l dry-run -d 'Print what would be removed, and remove nothing'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from rm" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from rm" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from mkdir" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from mkdir" -s p -l parents -d 'Parents too, and a directory that is there already will do'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from mkdir" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from mkdir" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from mount" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from mount" -l foreground -d 'Stay in the foreground; Ctrl-C and SIGTERM unmount'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from mount" -l detached -d 'Started by `nfs mount`, which waits for a word on standard output'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from mount" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from mount" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from unmount" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from unmount" -l force -d 'Unmount even if programs use it; they get errors'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from unmount" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from unmount" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from help" -f -a "cp" -d 'Copy files or trees, from or to a server, or between servers'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from help" -f -a "ls" -d 'List a directory; of an address without a path, the exports'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from help" -f -a "stat" -d 'Show what is known of a file, and of the space around it'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from help" -f -a "cat" -d 'Write a file to standard output'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from help" -f -a "rm" -d 'Remove files'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from help" -f -a "mkdir" -d 'Make a directory'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from help" -f -a "mount" -d 'Mount an export at a directory, for any program of yours'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from help" -f -a "unmount" -d 'Unmount what `dwell nfs mount` mounted'
complete -c dwell -n "__fish_dwell_using_subcommand nfs; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dwell -n "__fish_dwell_using_subcommand ctl" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand ctl" -l run -d 'Steer all running processes of the same run'
complete -c dwell -n "__fish_dwell_using_subcommand ctl" -l json -d 'Print JSON: a list of {pid, control}'
complete -c dwell -n "__fish_dwell_using_subcommand ctl" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand ctl" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand off" -l because -d 'The reason, for everybody who finds Dwell off' -r
complete -c dwell -n "__fish_dwell_using_subcommand off" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand off" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand off" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dwell -n "__fish_dwell_using_subcommand on" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand on" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand on" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and not __fish_seen_subcommand_from list show rm help" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand profile; and not __fish_seen_subcommand_from list show rm help" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and not __fish_seen_subcommand_from list show rm help" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and not __fish_seen_subcommand_from list show rm help" -f -a "list" -d 'List all profiles; damaged ones with the reason'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and not __fish_seen_subcommand_from list show rm help" -f -a "show" -d 'Show a profile'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and not __fish_seen_subcommand_from list show rm help" -f -a "rm" -d 'Remove a profile'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and not __fish_seen_subcommand_from list show rm help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and __fish_seen_subcommand_from list" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand profile; and __fish_seen_subcommand_from list" -l json -d 'Print JSON: a list of {name, profile, error}'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and __fish_seen_subcommand_from list" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and __fish_seen_subcommand_from show" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand profile; and __fish_seen_subcommand_from show" -l json -d 'Print JSON: a list of {name, profile, error}'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and __fish_seen_subcommand_from show" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and __fish_seen_subcommand_from rm" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand profile; and __fish_seen_subcommand_from rm" -l json -d 'Print JSON: a list of the removed names'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and __fish_seen_subcommand_from rm" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and __fish_seen_subcommand_from rm" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and __fish_seen_subcommand_from help" -f -a "list" -d 'List all profiles; damaged ones with the reason'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and __fish_seen_subcommand_from help" -f -a "show" -d 'Show a profile'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and __fish_seen_subcommand_from help" -f -a "rm" -d 'Remove a profile'
complete -c dwell -n "__fish_dwell_using_subcommand profile; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and not __fish_seen_subcommand_from sim trace figure help" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand lab; and not __fish_seen_subcommand_from sim trace figure help" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and not __fish_seen_subcommand_from sim trace figure help" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and not __fish_seen_subcommand_from sim trace figure help" -f -a "sim" -d 'Simulate what waits would cost on a machine that you do not have'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and not __fish_seen_subcommand_from sim trace figure help" -f -a "trace" -d 'Execution traces: which instructions a program ran and which memory they touched'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and not __fish_seen_subcommand_from sim trace figure help" -f -a "figure" -d 'Measure the figures of the papers, and keep them'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and not __fish_seen_subcommand_from sim trace figure help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from sim" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from sim" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from sim" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from sim" -f -a "its" -d 'Processes that page from an ultra-low-latency device, under five ways to spend the wait'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from sim" -f -a "model" -d 'What spinning gains over switching, from cycles per instruction: SmartCon\'s equations 1 to 6'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from sim" -f -a "sweep" -d 'Simulate batches with many parameters, into a directory of Parquet files'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from sim" -f -a "wait" -d 'Waits on a device that you do not own: CPUs, threads, others\' work, and any latency'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from sim" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from trace" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from trace" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from trace" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from trace" -f -a "record" -d 'Run a command under Valgrind and record it'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from trace" -f -a "info" -d 'Show footprint, working set over time, mix of instructions and reuse distances'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from trace" -f -a "cut" -d 'Copy a part of a trace'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from trace" -f -a "import" -d 'Make a trace from the text of Valgrind\'s lackey (--trace-mem=yes)'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from trace" -f -a "export" -d 'Write a trace as ChampSim\'s records of 64 bytes per instruction'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from trace" -f -a "workloads" -d 'Record the nine workloads of Idle-Time-Stealing\'s evaluation by programs that stand for them'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from trace" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from figure" -l case -d 'Only rows whose names contain this, in figures that are sampled row by row' -r
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from figure" -s o -l out -d 'Directory for ID.json and ID.svg' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from figure" -l docs -d 'Rewrite the tables in the documents of these directories from --kept, to which the results in --out are added' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from figure" -l kept -d 'Directory of results to keep, one for each kind of machine' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from figure" -l traces -d 'Directory of recorded workloads [default: target/traces, recorded when it is needed]' -r -F
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from figure" -l max-time -d 'Longest time to sample a row; what is not sampled takes less in proportion' -r
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from figure" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from figure" -l all -d 'All of which rows are lacking that were measured with this code, on a machine of this kind'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from figure" -l list -d 'List the figures and what they show'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from figure" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from figure" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "sim" -d 'Simulate what waits would cost on a machine that you do not have'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "trace" -d 'Execution traces: which instructions a program ran and which memory they touched'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "figure" -d 'Measure the figures of the papers, and keep them'
complete -c dwell -n "__fish_dwell_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dwell -n "__fish_dwell_using_subcommand pages" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand pages" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand pages" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand crunch" -l color -d 'Colours: on a terminal unless NO_COLOR is set, always, or never' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dwell -n "__fish_dwell_using_subcommand crunch" -s q -l quiet -d 'Print no progress and no warnings'
complete -c dwell -n "__fish_dwell_using_subcommand crunch" -s h -l help -d 'Print help'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "run" -d 'Run a command under Dwell, which decides how its file requests wait'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "advise" -d 'Say where a program\'s storage time goes, and what would help'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "compare" -d 'Compare a command with and without Dwell'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "top" -d 'Watch your processes under Dwell: device, policy, requests, latency, spinning'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "explain" -d 'Show how a request would be decided: each check in order, with its values'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "doctor" -d 'Check what works on this machine, and how to make the rest work'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "probe" -d 'Measure a device and store the result as its profile'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "bench" -d 'Measure'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "serve" -d 'Serve a directory, with user-space access to its files'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "nfs" -d 'Files on NFS servers: copy, list, show, remove, mount'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "ctl" -d 'Change the policy of a running process, or switch Dwell off in it, at once'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "off" -d 'Switch Dwell off: for all processes as root, else for your own'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "on" -d 'Switch Dwell on again after dwell off'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "profile" -d 'List, show or remove profiles'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "lab" -d 'Simulate waits, trace programs and measure the figures of the papers'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "pages" -d 'Writes manual pages and completions'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "crunch" -d 'One process of the load beside a measurement'
complete -c dwell -n "__fish_dwell_using_subcommand help; and not __fish_seen_subcommand_from run advise compare top explain doctor probe bench serve nfs ctl off on profile lab pages crunch help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "io" -d 'Wait policies on storage devices: throughput, latency, switches and CPU, in interleaved rounds'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "workload" -d 'Wait policies under workloads from data files: operations per second, latency, switches, CPU'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "nfs" -d 'A file on an NFS server: one thread with many requests outstanding against blocking threads'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "pager" -d 'A file as memory larger than a process may have: the pager against mmap, under one memory limit'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "bundle" -d 'Results and the machine\'s description in one anonymised file, to attach to an issue'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from serve" -f -a "start" -d 'Start a daemon that serves BACKING at MOUNT, also where a killed one did'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from serve" -f -a "status" -d 'Show your daemons, their channels, files and requests'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from serve" -f -a "stop" -d 'Stop serving MOUNT if nobody uses it; clear away what a killed daemon left'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from nfs" -f -a "cp" -d 'Copy files or trees, from or to a server, or between servers'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from nfs" -f -a "ls" -d 'List a directory; of an address without a path, the exports'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from nfs" -f -a "stat" -d 'Show what is known of a file, and of the space around it'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from nfs" -f -a "cat" -d 'Write a file to standard output'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from nfs" -f -a "rm" -d 'Remove files'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from nfs" -f -a "mkdir" -d 'Make a directory'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from nfs" -f -a "mount" -d 'Mount an export at a directory, for any program of yours'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from nfs" -f -a "unmount" -d 'Unmount what `dwell nfs mount` mounted'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from profile" -f -a "list" -d 'List all profiles; damaged ones with the reason'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from profile" -f -a "show" -d 'Show a profile'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from profile" -f -a "rm" -d 'Remove a profile'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "sim" -d 'Simulate what waits would cost on a machine that you do not have'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "trace" -d 'Execution traces: which instructions a program ran and which memory they touched'
complete -c dwell -n "__fish_dwell_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "figure" -d 'Measure the figures of the papers, and keep them'

"""Documented messages that tests of their own assert, and not those of all errors."""

from __future__ import annotations

ACTS = "roles/coordinator/test_acts.py"
BUDGET, SUM = "store/test_budget.py", "client/test_private_sum.py"
ELSEWHERE = {
    "...: format ..., and this version of secureps reads checkpoints since format ...: export its "
    "model with the version that wrote it (the operator's fault)": (
        "store/test_checkpoint.py",
        "reads checkpoints since format ",
    ),
    'memory = "..." is too little for what this shard holds: it works with "..." or more, ... '
    "(the operator's fault)": ("policy/test_tiers.py", "it works with "),
    "... has left this run: ... (the sender's fault)": (
        "roles/coordinator/test_departures.py",
        "has left this run: ",
    ),
    "... holds a copy of block ... of ..., and by the placement that it knows ... takes it in and "
    "passes it on (the sender's fault)": ("roles/shard/test_intake.py", "that it knows"),
    "what parameters returned: tensor ... has the value ..., which float32 cannot hold: it would "
    "become another number on its way; list it as frozen in the plan, if all clients have the "
    "same, or as local; nothing was sent: mend the script (the script's fault)": (
        "federation/test_returned.py",
        "which float32 cannot hold",
    ),
    "...: initial: ... is a pickle, as torch.save writes it. Reading one runs the code in it, so "
    "none is ever read: load it where you trust it, and write "
    'safetensors.torch.save_model(model, "initial.safetensors") (the operator\'s fault)': (
        "run/test_initial_schema.py",
        "is a pickle, as torch",
    ),
    "...: initial: ...: it has not the tensors of the script's model: ... (the operator's fault)": (
        "run/test_initial_schema.py",
        "it has not the tensors of the script's model",
    ),
    "what parameters returned: tensor ... has values that are NaN or infinite; nothing was sent: "
    "mend the script (the script's fault)": (
        "run/script/test_process.py",
        " has values that are NaN or infinite",
    ),
    "...: no bucket ..., or these keys may not read it (the operator's fault)": (
        "files/test_objects.py",
        ", or these keys may not read it",
    ),
    "left by its data holder's own act": ("roles/member/test_leaving.py", "data holder's own act"),
    "does nothing of what its data holder wants: ...": (
        "service/test_act_watch.py",
        "does nothing of what its data holder wants",
    ),
    "acts.jsonl: act ... is not what was signed, or not in its place": (
        "store/test_act_lines.py",
        " is not what was signed, or not in its place",
    ),
    "left out of this run: by the operator... (the other side's fault)": (ACTS, "by the operator"),
    "... is no act: it is one of ... (the sender's fault)": (ACTS, "is no act: it is one of"),
    "... is of a client: name one (the sender's fault)": (ACTS, "is of a client: name one"),
    "... is of no client: name none (the sender's fault)": (ACTS, "is of no client: name none"),
    "no client that trains in this run is called ... (the sender's fault)": (
        ACTS,
        "no client that trains in this run is called",
    ),
    'a reason that begins with "scaling: " is the coordinator\'s own, of what follows from the '
    "load: say it another way (the sender's fault)": (
        "federation/test_scaling.py",
        "is the coordinator",
    ),
    "this run's plan has no [scaling]: nothing follows the load, and there is nothing to switch "
    "off (the other side's fault)": ("federation/test_scaling.py", "nothing follows the load"),
    "without ... ... clients are left, and ... needs ... (the other side's fault)": (
        ACTS,
        " clients are left, and ",
    ),
    "... was not left out by an operator: ... (the other side's fault)": (
        ACTS,
        "was not left out by an operator",
    ),
    "the run is over: ... (the other side's fault)": (ACTS, "the run is over: "),
    "...: initial: ...: a plan is told to all parties, and a URL with a user, a password or a "
    "query opens the store to them: name it without, and give keys where its library looks for "
    "them (the operator's fault)": ("files/test_initial_file.py", "told to all parties"),
    "...: initial: ...: tensor ... has values that are NaN, infinite or too large for float32: a "
    "run cannot begin from them; export a sound model (the operator's fault)": (
        "run/test_initial_schema.py",
        " has values that are NaN, infinite or too",
    ),
    ".../...: longer than ... bytes (the operator's fault)": (
        "files/test_initial_file.py",
        ": longer than ",
    ),
    "coordinator at ... is another kind of server; check the address (the other side's fault)": (
        "wire/grpc/test_client.py",
        "another kind of server",
    ),
    "no connection to ...: who is there speaks no TLS; check it, and insecure "
    "(the other side's fault)": ("wire/grpc/test_tls.py", "speaks no TLS"),
    "another coordinator has taken over this run: this one is obeyed no more, and nothing that it "
    'did since counts. Leave it off; or name the other one in its file, standby = "HOST:PORT", and '
    "start it again: it becomes that one's standby (the other side's fault)": (
        "processes/test_standby.py",
        'name the other one in its file, standby = "HOST:PORT"',
    ),
    "this standby's journal has rows that the coordinator's does not have: the coordinator's "
    "folder is an older copy, and then secureps takeover goes on with what the standby has; or the "
    "standby's is of another run: start it with a new state folder, and keep the one that it has "
    "(the sender's fault)": (
        "service/test_lead.py",
        "this standby's journal has rows that the coordinator's does not have",
    ),
    "this standby does not have everything that the coordinator acknowledged: it takes over once "
    "secureps status shows that it follows. If the coordinator's folder is lost, begin a new run "
    "from the last checkpoint (the other side's fault)": (
        "roles/coordinator/test_standby.py",
        "this standby does not have everything that the coordinator acknowledged",
    ),
    "no run is founded yet, and so there is nothing to take over: start the coordinator again; if "
    "its machine is lost, start a coordinator with an empty state folder in its place "
    "(the other side's fault)": (
        "processes/test_standby.py",
        "no run is founded yet, and so there is nothing to take",
    ),
    "initial: ... is another file than the coordinator's: copy that one to this machine, and name "
    "it in this standby's own file, initial = \"PATH\" (the operator's fault)": (
        "processes/test_standby.py",
        "is another file than the coordinator's",
    ),
    "another standby follows this coordinator: end one of them (the other side's fault)": (
        "service/test_lead.py",
        "another standby follows",
    ),
    "it rules already: there is nothing to take over (the other side's fault)": (
        "federation/test_standby.py",
        "rules already",
    ),
    "the coordinator's plan differs in ... from this standby's: give it the same "
    "(the operator's fault)": ("federation/test_standby.py", "the coordinator's plan differs in "),
    "a ... has no standby: --standby is for a coordinator (the operator's fault)": (
        "run/test_serve.py",
        "has no standby",
    ),
    "...: coordinator: HOST:PORT of the coordinator that it follows is missing "
    "(the operator's fault)": ("run/test_serve.py", "that it follows is missing"),
    "...: damaged: start this standby with a new state folder, and keep this one "
    "(the operator's fault)": (
        "store/test_folder_number.py",
        "damaged: start this standby with a new",
    ),
    "a standby is here: the coordinator rules elsewhere; still trying": (
        "federation/test_standby.py",
        "a standby is here",
    ),
    "the coordinator waits for ... to obey it, for another one could rule; still trying": (
        "federation/test_standby.py",
        "to obey it, for another one could rule",
    ),
    "the coordinator's journal has ... bytes, too many to be sent: begin this standby's state "
    "folder from secureps backup and secureps restore (the other side's fault)": (
        "store/test_copy_parts.py",
        "too many to be sent: begin ",
    ),
    "...: it is of another run than the coordinator's: start this standby with a new state folder, "
    "and keep this one (the operator's fault)": (
        "store/test_copy_parts.py",
        "another run than the coordinator's: start this",
    ),
    "...: an address has 300 letters, no more (the sender's fault)": (
        "roles/test_extremes.py",
        "an address has 300 letters",
    ),
    "the app that relays runs as user ... and this key holder as ...: code of the run could read "
    "its keys and ledger. Give the key holder a user of its own, its node another that is not "
    "root, and the socket's folder a group of both (chmod 2750) (the operator's fault)": (
        "service/test_wave_socket_users.py",
        "and this key holder as ",
    ),
    "...: no file of a checkpoint: ... (the sender's fault)": (
        "roles/test_extremes.py",
        "no file of a checkpoint",
    ),
    "...: ... has ... blocks, and is founded whole (the sender's fault)": (
        "roles/shard/test_shard_orders.py",
        "and is founded whole",
    ),
    "these are not the bytes that ... signed (the sender's fault)": (
        "processes/test_floods.py",
        "these are not the bytes that",
    ),
    "... has sent that once more already (the sender's fault)": (
        "federation/test_stream_following.py",
        "has sent that once more already",
    ),
    "setting ... is not known; ... (the operator's fault)": (
        "client/test_script_settings.py",
        "is not known; ",
    ),
    "others wait, and this call has had its turn; go on with it later; still trying": (
        "wire/grpc/test_concurrency.py",
        "others wait, and this call has had its turn; go on with it later",
    ),
    "another connection of ... goes before a call on which nothing moves; still trying": (
        "wire/grpc/test_concurrency.py",
        "goes before a call on which nothing moves",
    ),
    "no memory, thread or open file is left for this request; still trying": (
        "kits/transport_kit.py",
        "no memory, thread or open file is left",
    ),
    "64 calls of ... are under way; still trying": ("processes/test_floods.py", " are under way"),
    "the coordinator's is no placement of this run's blocks on shards of the roster: nothing was "
    "sent; ask the aggregator's operator (the sender's fault)": (
        "roles/shard/test_shard_orders.py",
        "no placement of this run's blocks",
    ),
    "... answered ... with ..., and not with ...: it is no secureps server of this version (the "
    "sender's fault)": ("service/test_executor.py", ": it is no secureps server of"),
    "...: ... ended the process it ran in, with ...; see ... (the script's fault)": (
        "run/script/test_process.py",
        "ended the process it ran in, with ",
    ),
    "a version has no held-out score: ...": (
        "run/up/test_up.py",
        "a version has no held-out score: ",
    ),
    "...: does not import: ... (...:...); mend the script, or install what it imports (the "
    "script's fault)": ("run/script/test_process.py", "does not import: "),
    "sends no update from version ...: version ... is the same model as version ...: ...": (
        "federation/test_lost_state.py",
        "is the same model as version ",
    ),
    "sends no evaluation: ...": ("federation/test_evaluating.py", "sends no evaluation: "),
    "update norm ..., clip ...: cut to ... %": ("federation/test_batch_norm.py", "update norm"),
    "... of the update's ... values are beyond range ...: cut to it": (
        "federation/test_batch_norm.py",
        "values are beyond range ",
    ),
    "not founded: waits for ...": ("run/report/test_status_tables.py", "not founded: waits for "),
    "waits for members: ... of ... are live": ("policy/rules/test_sync.py", "waits for members: "),
    "another version would bring epsilon to ..., the budget is ...: this client stops": (
        "federation/test_charging.py",
        ": this client stops",
    ),
    "...: ... is left out of the run: ... spoils cohorts: ...": (
        "roles/coordinator/test_recovery.py",
        " is left out of the run: ",
    ),
    "left out of this run: ... spoils cohorts: ... (the other side's fault)": (
        "roles/coordinator/test_recovery.py",
        "left out of this run: ",
    ),
    "... cohorts in succession came to nothing at version ..., and every one was charged: ...": (
        "roles/coordinator/test_recovery.py",
        " cohorts in succession came to nothing at version ",
    ),
    "fewer than ... clients are left for version ...: ...; suspected: ...": (
        "federation/test_stream_following.py",
        " clients are left for version ",
    ),
    "... ended the simulation's process: ... (the script's fault)": (
        "run/simulate/test_last_words.py",
        " ended the simulation's process",
    ),
    "... died twice in the same way, with ..., and is not started again: ...; see ... (the "
    "operator's fault)": ("run/processes/test_supervisor.py", "died twice in the same way, with "),
    "... cannot take part, and no restart mends that: ...; see ... (the operator's fault)": (
        "run/processes/test_supervisor.py",
        " cannot take part, and no restart mends ",
    ),
    "... is given up: ...": ("roles/coordinator/test_recovery.py", " is given up: "),
    "...: ... is not waited for: ... passed over after ... s": (
        "federation/test_stream_lapses.py",
        " is not waited for: ",
    ),
    "... never comes: ...": ("federation/test_stream_refusals.py", " never comes: "),
    "this holder takes no part in the run: ...": (
        "processes/test_holders.py",
        "this holder takes no part in the run: ",
    ),
    "blocks are sealed by 1 thread or more, got ... (the operator's fault)": (
        "service/test_parallel.py",
        "1 thread or more, got ",
    ),
    "the plan has ... key holders, and the kit keys of ...: ...; before a run begins "
    "cipher.holders may change instead": (
        "run/test_serve.py",
        " key holders, and the kit keys of ",
    ),
    "the kit was made for another cipher than the plan's: its holders have ...; make a new kit "
    "with ...": ("run/test_serve.py", "made for another cipher than the plan's: its holders have "),
    "... has no cipher key of a holder called ...: under a cipher without one no key holder runs; "
    "otherwise ... makes it": ("run/test_serve.py", "has no cipher key of a holder called "),
    "... is signed by another CA: its fingerprint is ... and the pinned one ...": (
        "store/test_keyring.py",
        "another CA",
    ),
    "a CA's fingerprint has 64 hexadecimal digits, got ...: take it as ... prints it to the CA "
    "(the operator's fault)": (
        "processes/test_pinned_ca.py",
        "a CA's fingerprint has 64 hexadecimal digits, got ",
    ),
    "the kit in ... is damaged: ...; fetch it anew": ("store/test_keyring.py", "damaged"),
    "... belongs to others or can be written to by them, and what is kept there is executed: chmod "
    "700 it, or name another folder (--kernels)": ("test_compiled.py", "chmod 700 it"),
    "... holds ...: name a folder of its own by --out, or remove this one": (
        "run/test_run_lock.py",
        "name a folder of its own by --out, or remove this one",
    ),
    "compiled kernels cannot be kept in ...: ...; name another folder (--kernels)": (
        "test_compiled.py",
        "name another folder",
    ),
    "...: ... found a flaw, not believed: ... finds flaws in what ... clients sent, and too few "
    "others do: ...": ("federation/test_accusing.py", "clients sent, and too few others do"),
    "... has said three times within ... s that it takes part, and for what: it may say "
    "something else in ... s; still trying": (
        "federation/test_stream_reception.py",
        "has said three times within ",
    ),
    "... is open to others: chmod 600 ...": ("store/test_keyring.py", "chmod 600 "),
    "... is under a passphrase: give it at a terminal, or by --passphrase-fd N, the number of an "
    "open file whose first line it is (the operator's fault)": (
        "store/test_passphrases.py",
        "is under a passphrase: give it",
    ),
    "--passphrase-fd ...: cannot read it: ...; open it in the shell, as in ...< FILE (the "
    "operator's fault)": ("store/test_passphrases.py", ": cannot read it"),
    "... is on the roster already: its party signs new keys by the old ones with ...; if it has "
    "lost them, ... first (the operator's fault)": (
        "store/test_issuing.py",
        "is on the roster already: its party signs new keys",
    ),
    "...: two requests for one name; ask ... which one is its own (the operator's fault)": (
        "store/test_issuing.py",
        "two requests for one name; ask",
    ),
    "... asks with a key that was revoked or replaced: make new ones (the operator's fault)": (
        "store/test_issuing.py",
        "asks with a key that was revoked or replaced",
    ),
    "the request of ...: ... (the operator's fault)": ("store/test_issuing.py", "the request of "),
    "...: the passphrase is another one, or the file was changed (the operator's fault)": (
        "store/test_passphrases.py",
        "the passphrase is another one",
    ),
    "the run is founded on another file than the one that this client was given: ask for the "
    "plan's file of version 0, and give that as the setting initial (the sender's fault)": (
        "client/test_initial_model.py",
        "founded on another file than the one that this client was given",
    ),
    "the run's plan is not the one that this client agreed to, in ...: ask the run's operator for "
    "the plan, see secureps check, and join with it (the sender's fault)": (
        "client/test_session.py",
        "agreed to, in ",
    ),
    "push: tensor ... has values that are NaN or infinite (the script's fault)": (
        "client/test_session.py",
        "has values that are NaN",
    ),
    "version 0 of the run is not the model of the file that this client was given (the "
    "setting initial); nothing was trained: ask the run's operator which file it is founded on "
    "(the sender's fault)": (
        "client/test_initial_model.py",
        "version 0 of the run is not the model of the file",
    ),
    "this state folder holds run ..., whose plan differs in ... from the one that was given: give "
    "what the run began with. A new run takes a new state folder: keep this one (the operator's "
    "fault)": ("processes/test_federation.py", "from the one that was given"),
    "this state folder holds run ..., which was founded with another kit, or a newer one, than was "
    "given: ... (the operator's fault)": (
        "processes/test_federation.py",
        "which was founded with another kit, or a newer one, than was given",
    ),
    "...: bring ... the file of version 0, whose BLAKE2b-256 digest is ..., and name it in its own "
    'file: initial = "PATH" (the operator\'s fault)': (
        "processes/test_federation.py",
        " the file of version 0",
    ),
    "...: lacks ...: copy it from the machine of ..., where it is in ... of the folder that its "
    "file names as checkpoints (the operator's fault)": (
        "run/test_export.py",
        "of the folder that its file names as checkpoints",
    ),
    "...: row ... does not match its digest: the disk damaged it, or somebody edited it; bring "
    "back the newest copy of the folder: secureps restore COPY --state ... (the operator's "
    "fault)": (
        "store/test_journal.py",
        "secureps restore COPY --state ",
    ),
    "...: its fold does not match its digest: ... (the operator's fault)": (
        "store/test_compaction.py",
        "fold does not match",
    ),
    "...: the archive up to row ... does not match its digest (the operator's fault)": (
        "store/test_compaction.py",
        "archive up to row ",
    ),
    "its journal is not compacted: ...": ("service/test_replay.py", "is not compacted: "),
    "... is over since long; begin a new sequence (the sender's fault)": (
        "roles/coordinator/test_fates.py",
        "over since long",
    ),
    "...: a restore was cut short here: run secureps restore again (the operator's fault)": (
        "store/test_backup.py",
        "cut short here: run secureps restore again",
    ),
    "...: its journal is gone or an older copy, and no part of a checkpoint has version ... of "
    "...: ...": ("roles/shard/test_adopting.py", "no part of a checkpoint has version "),
    "... belongs to user ..., and this process runs as ...: chown -R ... ..., or run as the user "
    "whose it is (the operator's fault)": ("store/test_ownership.py", "and this process runs as "),
    "... can be written to by others, who may have changed what this party relies on: if they have "
    "not, chmod -R go-rwx ..., or give it a folder of its own (the operator's fault)": (
        "store/test_ownership.py",
        "chmod -R go-rwx ",
    ),
    "... parties take ... file descriptors, and this process may have ...: raise its limit (ulimit "
    "-n ..., LimitNOFILE=...) (the operator's fault)": ("service/test_limits.py", "parties take "),
    "... (ulimit ...: ..., or the container's own limit): this process ends; give it more and "
    "start it again, it goes on where it was (the operator's fault)": (
        "service/test_limits.py",
        "start it again",
    ),
    "another update would bring epsilon to ... over all runs that ... counts, and the budget is "
    "...: nothing more is sealed (the operator's fault)": (BUDGET, "nothing more is sealed"),
    "the plan trains without privacy, and ... has a budget of ... for all runs: nothing more is "
    "sealed (the operator's fault)": (BUDGET, "plan trains without privacy, and"),
    "the ledger counts single records in some runs and whole clients in others, and no epsilon is "
    "the sum of both: name another file by --ledger for this plan (the operator's fault)": (
        BUDGET,
        "no epsilon is the sum of both",
    ),
    "...: what is spent must be kept over all runs; name another file by --ledger (the operator's "
    "fault)": (BUDGET, "name another file by --ledger"),
    "this copy ends at row ..., and this ... has come to row ...: ...": (
        "store/test_backup.py",
        "ends at row ",
    ),
    "nothing says how far this ... had come: ...": (
        "store/test_backup.py",
        "nothing says how far this ",
    ),
    "...: ends at row ..., and ... rows were written: ...": (
        "store/test_journal_height.py",
        " rows were written",
    ),
    "... takes part in run ..., and the coordinator's state folder holds no run: is a volume "
    "missing? ...": (
        "roles/coordinator/test_registration.py",
        "holds no run: is a volume missing?",
    ),
    "... is asked, and this is ...; check the address (the other side's fault)": (
        "wire/grpc/test_replays.py",
        "; check the address",
    ),
    "sign it under this challenge, and send it again (the other side's fault)": (
        "wire/grpc/test_replays.py",
        "sign it under this challenge",
    ),
    "... answers for another cohort ... of ... (the sender's fault)": (
        "federation/test_committee_runs.py",
        "answers for another cohort ",
    ),
    "... answers for another receipt of ... (the sender's fault)": (
        "federation/test_committee_runs.py",
        "answers for another receipt of",
    ),
    "the coordinator's journal ends at version ... of ..., and ... has committed ...: ...": (
        "roles/coordinator/test_registration.py",
        "journal ends at version ",
    ),
    "the coordinator's journal ends at cohort ... of ..., and ... has the sums of cohort ...: "
    "...": ("roles/coordinator/test_registration.py", " has the sums of cohort "),
    "the coordinator's journal ends at placement ... of the blocks, and ... goes by placement ...: "
    "...": ("roles/coordinator/test_registration.py", "journal ends at placement "),
    "the coordinator's journal has another cohort ... of ... than the one that ... has sums of: "
    "...": ("roles/coordinator/test_registration.py", "journal has another cohort "),
    "... has opened cohort ... of ..., and the coordinator's journal ends at cohort ...: ...": (
        "roles/coordinator/test_registration.py",
        "the coordinator's journal ends at cohort ",
    ),
    "...'s ledger ends at cohort ... of ..., and it has answered for cohort ...: ...": (
        "roles/coordinator/test_registration.py",
        "and it has answered for cohort ",
    ),
    "this client's state folder ends before update ... of ..., and it has sent all before ...: "
    "...": ("roles/coordinator/test_registration.py", "and it has sent all before "),
    "...: advertise: ... is every address of this machine, and none that clients can dial: add "
    """advertise = "NAME:...", this machine's own name (the operator's fault)""": (
        "processes/test_moving.py",
        "every address of this machine",
    ),
    "...; shard-0 waits for its own disk: ...: cannot write: No space left on device": (
        "roles/test_disk_reports.py",
        "shard-0 waits for its own disk: ",
    ),
    "...: advertise: ... is not HOST:PORT (the operator's fault)": (
        "processes/test_moving.py",
        "is not HOST:PORT",
    ),
    "minimum: by the plan ... members of ... may be a cohort, and this site wants ... or more: ask "
    "for a plan with a minimum of ... or more in each rule, or lower the site's own (the "
    "operator's fault)": ("federation/test_site_policies.py", " may be a cohort, and this site "),
    "plans: the plan's digest is ..., and none of the ... that this site allows: ask for its file, "
    "see secureps check, and add the digest to plans (the operator's fault)": (
        "federation/test_site_policies.py",
        "plans: the plan's digest is ",
    ),
    "messages: the run uses ... of the app, which this site does not allow: read what the app "
    "answers, and add the name to messages of the site's policy, or ask for a plan without it (the "
    "operator's fault)": ("federation/test_reports.py", "messages: the run uses "),
    "evaluation: the plan has ... evaluate each version, and this site's records are never used "
    "for that: ask for a plan with another evaluation.evaluator (the operator's fault)": (
        "federation/test_site_policies.py",
        " evaluate each version",
    ),
    "...: scripts: ... has the SHA-256 digest ..., and none of the ... that this site allows: "
    "nothing of it was run; read it, and add the digest to scripts (the operator's fault)": (
        "client/test_site_policy.py",
        " has the SHA-256 digest ",
    ),
    "...: scripts: ..., and this site allows files by their digests: give one, or leave scripts "
    "out (the operator's fault)": (
        "client/test_site_policy.py",
        "and this site allows files by their digests",
    ),
    "network = false: this system lets no process leave the network (...): allow user namespaces, "
    "or run the client where it has no network but the way to the servers, and leave the key out "
    "(the operator's fault)": ("run/script/test_cut_off.py", "lets no process leave the network "),
    "...: network = false: this script runs in the client's own process, which needs the network: "
    "give it to secureps join, which runs it in another (the operator's fault)": (
        "client/test_site_policy.py",
        "network = false: this script runs in the client's own process",
    ),
    "--ledger ...: ... has ..., which counts for all runs of this site: leave the option out (the "
    "operator's fault)": ("client/test_site_policy.py", "counts for all runs of this site"),
    "as many trainings as this site allows (updates_per_hour) have begun within an hour: the next "
    "one may begin in ...": ("federation/test_site_policies.py", "have begun within an hour"),
    "WARNING: the plan's ...": ("policy/checks/test_privacy.py", "WARNING: the plan's "),
    "record privacy: in ... counted as nothing, ...": (SUM, "counted as nothing"),
    "record privacy: the model takes one record after the other, ...": (SUM, "one record after"),
}
"""Messages that other files assert: which, and the part that it looks for."""

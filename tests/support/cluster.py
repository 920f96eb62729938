"""Clusters that lose what they had committed: an asynchronous standby that is promoted, and a cluster that is restored to an earlier point.

    pair = Pair(env)                       # env.pg gets a streaming standby
    env.worker(database_url=pair.url())    # libpq looks for the one that can be written to
    pair.caught_up(); pair.lag()           # from here on the standby misses what is committed
    pair.fail_over()                       # primary SIGKILLed and fenced, standby promoted; env looks at the new primary

    backup = Backup(env, "copy")           # or "pitr"
    backup.take()
    backup.restore()
"""
import shutil
import signal

from . import procs
from .procs import wait_until
from .servers import WORKER_ROLE, pg_bin


def forget_lost(env):
    """Takes what the database has lost out of the list of accepted runs: a client that hears of it enqueues again. Returns the run_ids."""
    there = {str(row.run_id) for row in env.db.q("SELECT run_id FROM umavez.runs UNION ALL SELECT run_id FROM umavez.finished_runs")}
    lost = [run for run in env.accepted if run not in there]
    for run in lost:
        del env.accepted[run]
    return lost


class Pair:
    def __init__(self, env):
        self.env, self.primary = env, env.pg
        self.primary.settings["wal_keep_size"] = "256MB"
        self.standby = self.primary.standby()
        self.there = self.standby.database(env.db.name)
        self.checkpointer = None

    def url(self):
        """Both addresses; libpq takes the one that can be written to."""
        hosts = [self.primary, self.standby]
        return (f"postgresql://{WORKER_ROLE}@/{self.env.db.name}?host=" + ",".join(str(c.socket_dir) for c in hosts)
                + "&port=" + ",".join(str(c.port) for c in hosts) + "&target_session_attrs=read-write")

    def caught_up(self):
        """Waits until the standby has replayed all that is committed now."""
        lsn = self.env.db.val("SELECT pg_current_wal_insert_lsn()")
        wait_until(lambda: self.there.val("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", lsn), 60, "the standby catches up")

    def lag(self):
        """Cuts the stream."""
        self.there.q("ALTER SYSTEM SET primary_conninfo = ''")
        self.there.q("SELECT pg_reload_conf()")
        wait_until(lambda: self.there.val("SELECT count(*) FROM pg_stat_wal_receiver") == 0, 30, "the standby lags")

    def fail_over(self):
        """The old primary is fenced by being dead: nothing starts it again. The new one's checkpointer sleeps until `let_checkpoints`: so the control file
        goes on showing the old timeline, as it does for a while after every promotion."""
        env = self.env
        self.checkpointer = self.there.val("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
        procs.send(self.checkpointer, signal.SIGSTOP)
        self.primary.stop("kill")
        env.db.close()
        self.standby.promote()
        env.pg, env.db, env.gate.db = self.standby, self.there, self.there
        return forget_lost(env)

    def let_checkpoints(self):
        procs.send(self.checkpointer, signal.SIGCONT)

    def close(self):
        """After fail_over the Env destroys the new primary; what is left is ours."""
        for cluster in (self.primary, self.standby):
            if cluster is not self.env.pg:
                cluster.destroy()
        return True


class Backup:
    """kind copy: the files of the stopped cluster, put back and started. kind pitr: a base backup, an archive, and recovery to a named point."""

    def __init__(self, env, kind):
        self.env, self.kind, self.dir = env, kind, procs.private_dir("bk-")
        if kind == "pitr":
            (self.dir / "archive").mkdir()
            procs.own(self.dir / "archive")
            env.pg.restart(archive_mode="on", archive_command=f"cp %p {self.dir}/archive/%f", archive_timeout=1)

    def take(self):
        pg = self.env.pg
        if self.kind == "copy":
            pg.stop("fast")
            procs.run(["cp", "-a", pg.data, self.dir / "data"])
            pg.start()
        else:
            procs.run([pg_bin("pg_basebackup"), "-D", self.dir / "data", "-X", "none", "-c", "fast",
                       "-d", f"host={pg.socket_dir} port={pg.port} user=postgres"])
            self.env.db.q("SELECT pg_create_restore_point('earlier')")
            name = self.env.db.val("SELECT pg_walfile_name(pg_switch_wal())")
            wait_until(lambda: (self.dir / "archive" / name).exists(), 60, "the WAL is archived")

    def restore(self):
        """All that was committed since is lost. Returns the run_ids that are gone."""
        env, pg = self.env, self.env.pg
        pg.stop("kill")
        env.db.close()
        shutil.rmtree(pg.data)
        procs.run(["cp", "-a", self.dir / "data", pg.data])
        if self.kind == "pitr":
            pg.settings.update({"restore_command": f"cp {self.dir}/archive/%f %p", "recovery_target_name": "earlier",
                                "recovery_target_action": "promote", "archive_mode": "off"})
            (pg.data / "recovery.signal").touch()
            procs.own(pg.data / "recovery.signal")
        pg.start()
        wait_until(lambda: not env.db.val("SELECT pg_is_in_recovery()"), 60, "the end of recovery")
        return forget_lost(env)

    def close(self):
        procs.remove_dir(self.dir)
        return True

"""Which peers may change the scheduler: one rule for the client sockets and the control socket. Pure."""

from dataclasses import dataclass

from gpucommons.base.unix_listener import PeerCredentials


@dataclass(frozen=True, slots=True)
class Admins:
    """`own_uid` is the agent's user; `gid` is that of `admin_group`, None where it is not set.

    The group is looked up once, at the start: a lookup may block, and every user can connect.
    """

    own_uid: int
    gid: int | None = None

    def include(self, peer: PeerCredentials, groups: frozenset[int], is_local: bool) -> bool:
        """Root, the agent's user, and members of the group, if they are in the agent's user and pid namespace.

        Root in a container has uid 0, too, and can take any group. `groups` are the supplementary groups of the peer.
        """
        is_member = self.gid is not None and self.gid in (peer.gid, *groups)
        return is_local and (peer.uid in (0, self.own_uid) or is_member)

"""Random programs of users on the real client library and real cores, in virtual time.

Publishers and subscribers use every way to publish, receive and commit, from several tasks, and
cancel their calls at any await. They lose their connections, their store fails for a while, and
their processes end, are killed, and restart with their stores. Brokers end and return; in calm
programs clients move. A history records each publication and each delivery, and `judge` compares
the two.

    python -m tests.helpers.user_programs PROTOCOL FIRST COUNT

runs more programs than the suite.
"""

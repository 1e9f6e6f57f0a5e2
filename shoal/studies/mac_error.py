"""placeholder"""

from shoal.studies.mac_orders import *  # noqa
